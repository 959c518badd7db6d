"""The tables of the ledger, version by version, and the way from one to the next.

Why this exists: a ledger outlives the program that wrote it. `MIGRATIONS[n]` turns version n into n + 1; a version
once released is never edited. The version is SQLite's `user_version`; 0 is an empty file.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # One row, JSON: node, store, cluster, epoch, last sync, clock. Small things that change together.
        "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), document BLOB NOT NULL) STRICT",
        # The owners of the last sync, whole.
        "CREATE TABLE owners (pod_uid TEXT PRIMARY KEY, document BLOB NOT NULL) STRICT, WITHOUT ROWID",
        # What is recorded of a snapshot id. `gone` orders those no longer in the store by when they went, for pruning;
        # a snapshot that comes back with its id finds its promises again.
        """CREATE TABLE snapshots (name TEXT NOT NULL, snapshot_id TEXT NOT NULL, document BLOB NOT NULL, gone INTEGER,
        PRIMARY KEY (name, snapshot_id)) STRICT, WITHOUT ROWID""",
        "CREATE INDEX snapshots_gone ON snapshots (gone) WHERE gone IS NOT NULL",
        # Pods that another UID of the same name has replaced: a late retain for one of them does nothing.
        "CREATE TABLE superseded (position INTEGER PRIMARY KEY, pod_uid TEXT NOT NULL UNIQUE) STRICT",
    ),
)

SCHEMA_VERSION = len(MIGRATIONS)
