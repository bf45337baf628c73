"""How routers find workers."""
