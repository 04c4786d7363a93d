"""What clients send as images, audio and video: fetched, recognised, decoded."""
