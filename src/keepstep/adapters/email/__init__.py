"""E-mail: notices as plain text over SMTP."""
