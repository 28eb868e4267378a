"""The provider that offers the server: it is found by its key."""

from streamglot.upstream.providers import Provider

RELAY_CLOUD = Provider(
    "relay_cloud",
    "Relay Cloud",
    "relay",
    "https://relay.example/v2",
    "RELAY_API_KEY",
    ("relay-*",),
)
