"""From a configuration file to an algorithm's config, and to what a sweep goes through."""
