"""Images, audio and video that clients send: fetched, recognised, decoded."""
