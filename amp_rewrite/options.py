"""The options of a rewrite, under the module name that README uses: the names of `policy.options`."""

from amp_rewrite.arguments import Beside, ExternalData
from amp_rewrite.policy.devices import Device
from amp_rewrite.policy.options import IOTypes, Level, Options, Pins

__all__ = ["Beside", "Device", "ExternalData", "IOTypes", "Level", "Options", "Pins"]
