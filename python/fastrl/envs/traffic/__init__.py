"""Traffic: highways, cooperative driving, the ring road."""
