"""Where `decoder` was before it came to `tidings_connectors.cdc.avro_payloads`: programs import it from here."""

from tidings_connectors.cdc.avro_payloads import decoder

__all__ = ["decoder"]
