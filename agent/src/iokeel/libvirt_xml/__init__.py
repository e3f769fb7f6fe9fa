"""What the agent reads in libvirt's XML: a domain, and the policy in its metadata."""
