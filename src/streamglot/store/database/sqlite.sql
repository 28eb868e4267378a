-- What only SQLite has, and the triggers in its language.

-- scope is a word for the caller, so that the search index finds the texts of one caller. The newest text's number is used again after
-- its deletion.
CREATE TABLE texts (
    number INTEGER PRIMARY KEY,
    turn_id TEXT NOT NULL CONSTRAINT texts_of_turn UNIQUE,
    body TEXT NOT NULL,
    scope TEXT NOT NULL DEFAULT ''
);

-- The index is updated when the process is idle instead of with every text; indexed is the number of the last indexed text. Marks are
-- parts of words.
CREATE TABLE indexed (number INTEGER NOT NULL);
INSERT INTO indexed VALUES (0);
CREATE VIRTUAL TABLE search USING fts5(
    body, scope, content='texts', content_rowid='number', tokenize="unicode61 remove_diacritics 0 categories 'L* N* M*'"
);
CREATE TRIGGER texts_gone AFTER DELETE ON texts WHEN old.number <= (SELECT number FROM indexed) BEGIN
    INSERT INTO search(search, rowid, body, scope) VALUES ('delete', old.number, old.body, old.scope);
    UPDATE indexed SET number = min(number, (SELECT coalesce(max(number), 0) FROM texts));
END;

-- A turn that starts is running and belongs to its session; a turn that ends is not running, and has used something.
CREATE TRIGGER turns_added AFTER INSERT ON turns BEGIN
    INSERT INTO running VALUES (new.id, new.process);
END;

CREATE TRIGGER turns_counted AFTER INSERT ON turns WHEN (NOT new.probe) BEGIN
    UPDATE sessions SET turns = turns + 1,
        updated = CASE WHEN updated < new.started THEN new.started ELSE updated END,
        title = CASE WHEN title = '' THEN new.title ELSE title END
    WHERE id = new.session_id;
END;

CREATE TRIGGER endings_added AFTER INSERT ON endings BEGIN
    DELETE FROM running WHERE turn_id = new.turn_id;
    UPDATE sessions SET
        input_tokens = input_tokens + coalesce(new.input_tokens, 0),
        output_tokens = output_tokens + coalesce(new.output_tokens, 0),
        cost = CASE WHEN new.cost IS NULL THEN cost ELSE coalesce(cost, 0) + new.cost END
    WHERE id = new.session_id AND (SELECT NOT probe FROM turns WHERE turns.id = new.turn_id);
    INSERT INTO spending
        SELECT keys.name, sizes.size, CASE WHEN sizes.size = 0 THEN 0 ELSE CAST(turns.started / sizes.size AS INTEGER) * sizes.size END, 1,
            CAST(coalesce(new.input_tokens, 0) AS BIGINT) + coalesce(new.output_tokens, 0), coalesce(new.cost, 0)
        FROM keys JOIN turns ON turns.id = new.turn_id
        CROSS JOIN (SELECT 0 AS size UNION ALL SELECT 60 UNION ALL SELECT 86400) AS sizes WHERE keys.name = new.caller
        ON CONFLICT (caller, size, at) DO UPDATE SET
            turns = spending.turns + excluded.turns, tokens = spending.tokens + excluded.tokens, cost = spending.cost + excluded.cost;
END;

CREATE TRIGGER endings_changed AFTER UPDATE ON endings BEGIN
    UPDATE sessions SET
        input_tokens = input_tokens + coalesce(new.input_tokens, 0) - coalesce(old.input_tokens, 0),
        output_tokens = output_tokens + coalesce(new.output_tokens, 0) - coalesce(old.output_tokens, 0),
        cost = CASE WHEN new.cost IS NULL THEN cost ELSE coalesce(cost, 0) + new.cost - coalesce(old.cost, 0) END
    WHERE id = new.session_id AND (SELECT NOT probe FROM turns WHERE turns.id = new.turn_id);
    INSERT INTO spending
        SELECT keys.name, sizes.size, CASE WHEN sizes.size = 0 THEN 0 ELSE CAST(turns.started / sizes.size AS INTEGER) * sizes.size END, 0,
            CAST(coalesce(new.input_tokens, 0) AS BIGINT) + coalesce(new.output_tokens, 0)
            - coalesce(old.input_tokens, 0) - coalesce(old.output_tokens, 0), coalesce(new.cost, 0) - coalesce(old.cost, 0)
        FROM keys JOIN turns ON turns.id = new.turn_id
        CROSS JOIN (SELECT 0 AS size UNION ALL SELECT 60 UNION ALL SELECT 86400) AS sizes WHERE keys.name = new.caller
        ON CONFLICT (caller, size, at) DO UPDATE SET
            turns = spending.turns + excluded.turns, tokens = spending.tokens + excluded.tokens, cost = spending.cost + excluded.cost;
END;
