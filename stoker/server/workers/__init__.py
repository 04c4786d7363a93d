"""Worker processes that answer calls of models behind the server's port."""
