-- Sorts, hashes, aggregates, text, JSON and arrays; the answers are digests.
SET work_mem = '8MB';
CREATE TABLE words AS
  SELECT n, md5(n::text) AS word, (n::bigint * 7919) % 1009 AS shelf, repeat(md5((n % 97)::text), 1 + n % 5) AS tale
  FROM generate_series(1, :rows) AS n;
CREATE INDEX ON words (word);
CREATE INDEX ON words (shelf, n);
ANALYZE words;
SELECT md5(string_agg(word, ',' ORDER BY word)) FROM words;
SELECT md5(string_agg(shelf || ':' || c || ':' || s, ',' ORDER BY shelf))
  FROM (SELECT shelf, count(*) AS c, sum(length(tale)) AS s FROM words GROUP BY shelf) AS t;
SELECT count(*), sum(a.n - b.n) FROM words a JOIN words b ON a.word = md5(((b.n::bigint * 13) % :rows)::text);
SELECT md5(string_agg(j::text, '' ORDER BY n))
  FROM (SELECT n, jsonb_build_object('n', n, 'word', word, 'parts', string_to_array(tale, 'a')) AS j
        FROM words WHERE n % 11 = 0) AS t;
SELECT sum(cardinality(regexp_split_to_array(tale, '[abc]'))) FROM words;
SELECT md5(string_agg(r::text, ',' ORDER BY n))
  FROM (SELECT n, rank() OVER (PARTITION BY shelf ORDER BY word) AS r FROM words) AS t;
UPDATE words SET tale = upper(tale) WHERE n % 3 = 0;
DELETE FROM words WHERE n % 5 = 0;
VACUUM words;
DO $$
DECLARE
  bag text[] := '{}';
BEGIN
  FOR i IN 1..2000 LOOP
    bag := bag || md5(i::text);
    IF i % 7 = 0 THEN
      BEGIN
        PERFORM 1 / (i % 7);
      EXCEPTION WHEN division_by_zero THEN
        bag := bag[2:];
      END;
    END IF;
  END LOOP;
  RAISE NOTICE 'bag %', md5(array_to_string(bag, ','));
END $$;
SELECT count(*), md5(string_agg(tale, '' ORDER BY n)) FROM words;
