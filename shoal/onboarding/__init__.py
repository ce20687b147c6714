"""What a device needs to join: its wheel, the install script, and bundles of both.

`sources` finds the device's parts in this installation, `wheel` packs them, `depot`
lists what the orchestrator serves, `bundle` packs the same for a site without a
network, `script` fills in the install script, `lines` what people paste.
"""
