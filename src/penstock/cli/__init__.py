"""The `penstock` command. Each module holds one command and only translates; nothing imports it."""
