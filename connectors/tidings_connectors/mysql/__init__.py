"""MariaDB, tailed by its binary log. MySQL is refused, in a sentence."""
