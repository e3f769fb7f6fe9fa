"""Parts of a host: its cgroups, storages and clock."""
