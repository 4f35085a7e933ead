"""The routers, one module per kind: pages, reads, control, the event stream, exports, health."""
