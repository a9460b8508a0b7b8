"""CloudWatch metrics of an endpoint: read, shown as a table or a page, and watched by alarms."""
