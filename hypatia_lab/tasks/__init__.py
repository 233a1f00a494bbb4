"""Tasks from elsewhere: public formats that state a problem and a candidate, a module a format."""
