"""Outhaul's storage adapters behind the protocols of txoutbox, through ``outhaul plugin drive``."""

from .drive import Drive, DriveError
from .storage import DriveStorage

__all__ = ["Drive", "DriveError", "DriveStorage"]
