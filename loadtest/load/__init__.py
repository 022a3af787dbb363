"""What users of a load test do. Nothing here knows Locust, but for users.py and web_tab.py."""
