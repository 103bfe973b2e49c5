"""`pgoutput`, protocol version 1, from the bytes of a slot to Arrow columns of text.

Runs in the task that reads a slot; pure. `Decoder` is all that the reader needs.
"""

from penstock.postgres.pgoutput.decoder import Decoder
from penstock.postgres.pgoutput.relations import Relation, RelationColumn
from penstock.postgres.pgoutput.rows import Op, RelationRows

__all__ = ["Decoder", "Op", "Relation", "RelationColumn", "RelationRows"]
