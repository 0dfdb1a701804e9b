"""Change data capture: what the logs of all datastores share.

`base.TailedLogBase` is the class to begin a connector of your own with.
"""
