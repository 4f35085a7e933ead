"""The HTTP side: REST under ``/api/v1``, the live channel, the pages, and the door before all of them."""

from app.api.factory import create_app, hub_of
from app.api.tokens import Tokens

__all__ = ["Tokens", "create_app", "hub_of"]
