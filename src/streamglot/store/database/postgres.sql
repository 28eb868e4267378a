-- What only PostgreSQL has, and the triggers in its language.

-- scope is a word for the caller, so that the search index finds the texts of one caller.
CREATE TABLE texts (
    number SERIAL PRIMARY KEY,
    turn_id TEXT NOT NULL CONSTRAINT texts_of_turn UNIQUE,
    body TEXT NOT NULL,
    scope TEXT NOT NULL DEFAULT ''
);

-- The index has the words of a text, its place in time (a block of 1,024 texts), and the word for its caller. Each search reads the whole
-- list of texts that are not in the index proper yet (gin_pending_list_limit, in KB): it is the smallest.
CREATE INDEX texts_search ON texts USING gin (
    (string_to_array(body, ' ') || ARRAY['#' || (number / 1024), '@' || scope])
) WITH (gin_pending_list_limit = 64);

-- A turn that starts is running and belongs to its session; a turn that ends is not running, and has used something.
CREATE FUNCTION turns_added() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO running VALUES (new.id, new.process);
    RETURN NULL;
END $$;
CREATE TRIGGER turns_added AFTER INSERT ON turns FOR EACH ROW EXECUTE FUNCTION turns_added();

CREATE FUNCTION turns_counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE sessions SET turns = turns + 1,
        updated = CASE WHEN updated < new.started THEN new.started ELSE updated END,
        title = CASE WHEN title = '' THEN new.title ELSE title END
    WHERE id = new.session_id;
    RETURN NULL;
END $$;
CREATE TRIGGER turns_counted AFTER INSERT ON turns FOR EACH ROW WHEN (NOT new.probe) EXECUTE FUNCTION turns_counted();

CREATE FUNCTION endings_added() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM running WHERE turn_id = new.turn_id;
    UPDATE sessions SET
        input_tokens = input_tokens + coalesce(new.input_tokens, 0),
        output_tokens = output_tokens + coalesce(new.output_tokens, 0),
        cost = CASE WHEN new.cost IS NULL THEN cost ELSE coalesce(cost, 0) + new.cost END
    WHERE id = new.session_id AND (SELECT NOT probe FROM turns WHERE turns.id = new.turn_id);
    INSERT INTO spending
        SELECT keys.name, sizes.size, CASE WHEN sizes.size = 0 THEN 0 ELSE floor(turns.started / sizes.size)::bigint * sizes.size END, 1,
            CAST(coalesce(new.input_tokens, 0) AS BIGINT) + coalesce(new.output_tokens, 0), coalesce(new.cost, 0)
        FROM keys JOIN turns ON turns.id = new.turn_id
        CROSS JOIN (SELECT 0 AS size UNION ALL SELECT 60 UNION ALL SELECT 86400) AS sizes WHERE keys.name = new.caller
        ON CONFLICT (caller, size, at) DO UPDATE SET
            turns = spending.turns + excluded.turns, tokens = spending.tokens + excluded.tokens, cost = spending.cost + excluded.cost;
    RETURN NULL;
END $$;
CREATE TRIGGER endings_added AFTER INSERT ON endings FOR EACH ROW EXECUTE FUNCTION endings_added();

CREATE FUNCTION endings_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE sessions SET
        input_tokens = input_tokens + coalesce(new.input_tokens, 0) - coalesce(old.input_tokens, 0),
        output_tokens = output_tokens + coalesce(new.output_tokens, 0) - coalesce(old.output_tokens, 0),
        cost = CASE WHEN new.cost IS NULL THEN cost ELSE coalesce(cost, 0) + new.cost - coalesce(old.cost, 0) END
    WHERE id = new.session_id AND (SELECT NOT probe FROM turns WHERE turns.id = new.turn_id);
    INSERT INTO spending
        SELECT keys.name, sizes.size, CASE WHEN sizes.size = 0 THEN 0 ELSE floor(turns.started / sizes.size)::bigint * sizes.size END, 0,
            CAST(coalesce(new.input_tokens, 0) AS BIGINT) + coalesce(new.output_tokens, 0)
            - coalesce(old.input_tokens, 0) - coalesce(old.output_tokens, 0), coalesce(new.cost, 0) - coalesce(old.cost, 0)
        FROM keys JOIN turns ON turns.id = new.turn_id
        CROSS JOIN (SELECT 0 AS size UNION ALL SELECT 60 UNION ALL SELECT 86400) AS sizes WHERE keys.name = new.caller
        ON CONFLICT (caller, size, at) DO UPDATE SET
            turns = spending.turns + excluded.turns, tokens = spending.tokens + excluded.tokens, cost = spending.cost + excluded.cost;
    RETURN NULL;
END $$;
CREATE TRIGGER endings_changed AFTER UPDATE ON endings FOR EACH ROW EXECUTE FUNCTION endings_changed();
