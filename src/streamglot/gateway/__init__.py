"""The gateway: any client on one side, any upstream on the other, one path between them."""
