-- The tables of both databases. PostgreSQL has BYTEA for BLOB, and no WITHOUT ROWID.
--
--     sessions ──< turns ──1 endings ──< answers >── messages ──< pieces >── contents
--                  │ │                                  │                       │
--                  │ └── node ──> nodes (a tree) ───────┘                       │
--                  └── settings ────────────────────────────────────────────────┘
--
-- A turn is written when it starts and its ending when it ends, so rows never change. A message is stored once, under the hash of its
-- content; so are its long texts, and the tools and settings of a request. A node is a message and its parent node, so a history is one
-- hash, and shared history takes no extra space. There are no foreign keys on purpose: a row may be written before the row that it refers
-- to, and nothing is deleted by a cascade. Times are seconds since 1970. Text columns that hold structures hold JSON.
--
-- Every query on the way of a request, and the first page of every list, reads a bounded number of rows however many there are. The shape
-- of the tables ensures that, not the statistics of the database:
--
-- - The id of a turn begins with its time, so an index that ends with the id returns the newest turns first without a sort.
-- - An index begins with all columns that a query compares. endings repeats the turn's caller and session for that reason.
-- - Triggers keep what would otherwise be computed from all turns: running, the totals in sessions, and spending. A trigger runs only
--   for rows that are really added, so that a repeated commit changes nothing.

CREATE TABLE processes (
    id TEXT PRIMARY KEY,
    place TEXT NOT NULL,
    pid INTEGER NOT NULL,
    born TEXT NOT NULL,
    started DOUBLE PRECISION NOT NULL,
    seen DOUBLE PRECISION NOT NULL,
    recovered DOUBLE PRECISION
);
CREATE INDEX processes_by_recovery ON processes (recovered);

-- The columns from turns on are the totals of the session's turns without probes. updated is the start of the newest one, 0 if there is
-- none. Triggers add to them; pruning subtracts.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    caller TEXT NOT NULL,
    name TEXT NOT NULL,
    directory TEXT NOT NULL,
    started DOUBLE PRECISION NOT NULL,
    turns INTEGER NOT NULL DEFAULT 0,
    updated DOUBLE PRECISION NOT NULL DEFAULT 0,
    title TEXT NOT NULL DEFAULT '',
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    cost DOUBLE PRECISION
);
CREATE INDEX sessions_by_update ON sessions (updated, id);
CREATE INDEX sessions_of_caller ON sessions (caller, updated, id);
CREATE INDEX sessions_of_directory ON sessions (directory, updated, id);

CREATE TABLE messages (
    hash BLOB PRIMARY KEY,
    body TEXT NOT NULL
);

-- Requests without their messages, and the pieces of requests and messages, which are compressed.
CREATE TABLE contents (
    hash BLOB PRIMARY KEY,
    body BLOB NOT NULL
);

-- The pieces of the message or request with the hash owner: long texts, tools. contents.py takes them out and puts them back.
CREATE TABLE pieces (
    owner BLOB NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (owner, number)
) WITHOUT ROWID;

CREATE TABLE nodes (
    hash BLOB NOT NULL PRIMARY KEY,
    parent BLOB,
    message BLOB NOT NULL,
    depth INTEGER NOT NULL
) WITHOUT ROWID;

-- prompt_hash is that of the conversation up to the request, by which an edited answer is found. named: the client chose a name for the
-- session. A request that names nothing does not continue such a turn.
CREATE TABLE turns (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    caller TEXT NOT NULL,
    process TEXT NOT NULL,
    request_id TEXT NOT NULL,
    started DOUBLE PRECISION NOT NULL,
    dialect TEXT NOT NULL,
    model TEXT NOT NULL,
    stream BOOLEAN NOT NULL,
    probe BOOLEAN NOT NULL,
    title TEXT NOT NULL,
    settings BLOB,
    node BLOB,
    prompt_hash BLOB,
    response_id TEXT NOT NULL DEFAULT '',
    retrievable BOOLEAN NOT NULL DEFAULT true,
    client_options TEXT,
    named BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX turns_by_time ON turns (started);
CREATE INDEX turns_of_caller ON turns (caller, id);
CREATE INDEX turns_of_session ON turns (session_id, id);
CREATE INDEX turns_by_model ON turns (model, id);
CREATE INDEX turns_of_caller_by_model ON turns (caller, model, id);
CREATE INDEX turns_by_prompt ON turns (prompt_hash, named, session_id, id) WHERE prompt_hash IS NOT NULL;
CREATE INDEX turns_by_response ON turns (response_id, caller, id) WHERE response_id <> '';

-- The turns that have no ending yet. Triggers add and remove them.
CREATE TABLE running (
    turn_id TEXT NOT NULL PRIMARY KEY,
    process TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX running_of_process ON running (process);

-- Turns whose response a client has deleted. The turn itself stays.
CREATE TABLE withdrawals (
    turn_id TEXT NOT NULL PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL
) WITHOUT ROWID;

-- session_id, caller and named are those of the turn.
CREATE TABLE endings (
    turn_id TEXT PRIMARY KEY,
    ended DOUBLE PRECISION NOT NULL,
    ending TEXT NOT NULL,
    error_code TEXT NOT NULL DEFAULT '',
    error TEXT,
    response_id TEXT NOT NULL DEFAULT '',
    response TEXT,
    tip BLOB,
    upstream TEXT NOT NULL DEFAULT '',
    upstream_dialect TEXT NOT NULL DEFAULT '',
    upstream_model TEXT NOT NULL DEFAULT '',
    upstream_settings BLOB,
    upstream_node BLOB,
    input_tokens INTEGER,
    output_tokens INTEGER,
    usage TEXT,
    cost DOUBLE PRECISION,
    timings TEXT,
    verdicts TEXT,
    more TEXT,
    session_id TEXT NOT NULL DEFAULT '',
    caller TEXT NOT NULL DEFAULT '',
    named BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX endings_by_tip ON endings (tip, named, session_id, turn_id) WHERE tip IS NOT NULL;
CREATE INDEX endings_by_response ON endings (response_id, caller, turn_id) WHERE response_id <> '';
CREATE INDEX endings_by_ending ON endings (ending, turn_id);
CREATE INDEX endings_of_caller_by_ending ON endings (caller, ending, turn_id);
CREATE INDEX endings_by_upstream ON endings (upstream, turn_id);
CREATE INDEX endings_of_caller_by_upstream ON endings (caller, upstream, turn_id);

-- echo_session is the session of an answer that carries provider state, which the session's next requests need.
CREATE TABLE answers (
    turn_id TEXT NOT NULL,
    choice INTEGER NOT NULL,
    message BLOB NOT NULL,
    echo_session TEXT,
    PRIMARY KEY (turn_id, choice)
) WITHOUT ROWID;
CREATE INDEX answers_with_echoes ON answers (echo_session, turn_id) WHERE echo_session IS NOT NULL;

CREATE TABLE states (
    session_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (session_id, provider, name)
) WITHOUT ROWID;

CREATE TABLE frames (
    turn_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (turn_id, number)
);

-- The steps of a tool loop, written while it runs: model turns and calls, as JSON.
CREATE TABLE steps (
    turn_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (turn_id, number)
) WITHOUT ROWID;

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL CONSTRAINT keys_by_name UNIQUE,
    hash TEXT NOT NULL CONSTRAINT keys_by_hash UNIQUE,
    shown TEXT NOT NULL,
    models TEXT NOT NULL,
    tools TEXT,
    requests_per_minute INTEGER NOT NULL,
    tokens_per_minute INTEGER NOT NULL,
    concurrent INTEGER NOT NULL,
    budget_cost DOUBLE PRECISION,
    budget_tokens INTEGER,
    budget_seconds DOUBLE PRECISION,
    created DOUBLE PRECISION NOT NULL,
    revoked DOUBLE PRECISION
);

-- What the turns of each stored key used: in each minute and in each day in which they started (size seconds from at on), and in total (a
-- size of 0). A trigger adds to it; pruning subtracts.
CREATE TABLE spending (
    caller TEXT NOT NULL,
    size INTEGER NOT NULL,
    at BIGINT NOT NULL,
    turns INTEGER NOT NULL,
    tokens BIGINT NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (caller, size, at)
) WITHOUT ROWID;

-- wanted is the time of the last notice of a reader, or of a stop request, from another process. The last index is that of running streams
-- that have a reader or a stop request.
CREATE TABLE streams (
    id TEXT PRIMARY KEY,
    caller TEXT NOT NULL,
    started DOUBLE PRECISION NOT NULL,
    seen DOUBLE PRECISION NOT NULL,
    last INTEGER,
    stopped BOOLEAN NOT NULL,
    head TEXT NOT NULL,
    wanted DOUBLE PRECISION NOT NULL DEFAULT 0
);
CREATE INDEX streams_by_time ON streams (seen);
CREATE INDEX streams_asked_for ON streams (id) WHERE last IS NULL AND wanted > 0;

CREATE TABLE chunks (
    stream_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    last INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (stream_id, number)
);

-- The questions to people of all processes, until they expire. suspended: the stream has ended, and the client's next request decides; any
-- process can resume the call. Otherwise process holds the stream, and takes the decision from this row. body is the question; it is
-- empty once the decision was taken.
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    process TEXT NOT NULL,
    caller TEXT NOT NULL,
    suspended BOOLEAN NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    body TEXT NOT NULL,
    decision TEXT
);
CREATE INDEX approvals_of_process ON approvals (process);
CREATE INDEX approvals_by_expiry ON approvals (suspended, expires);

-- One row for each pruning of messages. After it, every process must discard what it remembers as stored.
CREATE TABLE epochs (
    number INTEGER PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL
);

-- Durable batches.
--
--     batches ──< batch_items ──1 batch_results
--         └────< batch_jobs (a range of items each)      files (uploads, and the result files of batches)
--
-- An item is one request. A result is written once, and the first one stays. A job is a range of items that one process runs: the process
-- that owns it renews its lease. The sums of a job are written when all of its items have results, so the progress of a batch is the sum of
-- its jobs.

-- batch_id: the batch whose results this file is. Such a file has no contents of its own: they are read from the results.
CREATE TABLE files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION,
    batch_id TEXT
);
CREATE INDEX files_of_owner ON files (owner, created);

-- closing: the status that the batch will end with before all of its items ran: cancelled or expired. times: when it entered each status.
-- totals: its counts, once it has ended. process and lease: who reads its input file.
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    api TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file TEXT NOT NULL,
    status TEXT NOT NULL,
    closing TEXT NOT NULL DEFAULT '',
    completion_window TEXT NOT NULL,
    metadata TEXT,
    errors TEXT,
    output_file TEXT,
    error_file TEXT,
    model TEXT NOT NULL DEFAULT '',
    total INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL DEFAULT 0,
    process TEXT,
    lease DOUBLE PRECISION,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    results_expire DOUBLE PRECISION,
    times TEXT NOT NULL,
    totals TEXT,
    ended DOUBLE PRECISION
);
CREATE INDEX batches_of_owner ON batches (owner, created);
CREATE INDEX batches_by_end ON batches (ended);

CREATE TABLE batch_items (
    batch_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    line INTEGER NOT NULL,
    custom_id TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (batch_id, number),
    CONSTRAINT batch_items_by_custom_id UNIQUE (batch_id, custom_id)
);

-- outcome: succeeded, errored, canceled or expired. line is the line of the output or error file without its line end.
CREATE TABLE batch_results (
    batch_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    line BLOB NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    attempts INTEGER NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (batch_id, number)
);

-- The items first to last - 1. process is the last owner, also after the job was given back. remote: the provider's own batch that runs
-- these items; lease is then when it is asked for next.
CREATE TABLE batch_jobs (
    batch_id TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    upstream TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    process TEXT,
    lease DOUBLE PRECISION,
    remote TEXT,
    succeeded BIGINT NOT NULL DEFAULT 0,
    errored BIGINT NOT NULL DEFAULT 0,
    canceled BIGINT NOT NULL DEFAULT 0,
    expired BIGINT NOT NULL DEFAULT 0,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    cached_tokens BIGINT NOT NULL DEFAULT 0,
    reasoning_tokens BIGINT NOT NULL DEFAULT 0,
    output_bytes BIGINT NOT NULL DEFAULT 0,
    error_bytes BIGINT NOT NULL DEFAULT 0,
    retried BIGINT NOT NULL DEFAULT 0,
    cost DOUBLE PRECISION NOT NULL DEFAULT 0,
    PRIMARY KEY (batch_id, first)
);
CREATE INDEX batch_jobs_by_state ON batch_jobs (state, priority, first);
