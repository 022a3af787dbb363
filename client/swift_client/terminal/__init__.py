"""The commands swift-chat and swift-generate."""
