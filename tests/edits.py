"""Plain data, as it comes from JSON, with each of its places made odd in turn."""


def places(content):
    """Every place in plain data: what holds it, and its key there."""
    for key, inner in list(content.items() if isinstance(content, dict) else enumerate(content)):
        yield content, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


ODD = (None, [], {}, ["x"], "x", "\ud800", "", -1, 10**30, 1e308, float("nan"), True, False)


def edits(content):
    """The content with each of its places made odd in turn, or gone."""
    for holder, key in list(places(content)):
        kept = holder[key]
        for odd in ODD:
            holder[key] = odd
            yield content
        holder[key] = kept
        if isinstance(holder, dict):
            del holder[key]
            yield content
            holder[key] = kept
