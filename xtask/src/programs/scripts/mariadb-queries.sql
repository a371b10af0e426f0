SET SESSION group_concat_max_len = 100000000;
SELECT count(*), sum(length(note)) FROM item;
SELECT shelf, count(*), md5(group_concat(name ORDER BY name, id)) FROM item GROUP BY shelf ORDER BY shelf;
SELECT a.shelf, count(*) FROM item a JOIN item b ON a.name = b.name AND a.id < b.id AND a.shelf < 10
  GROUP BY a.shelf ORDER BY a.shelf;
SELECT name, count(*) AS c FROM item GROUP BY name HAVING c > 1 ORDER BY c DESC, name LIMIT 500;
SELECT id, rank() OVER (PARTITION BY shelf ORDER BY note, id) AS r FROM item ORDER BY r DESC, id LIMIT 100;
SELECT md5(group_concat(json_object('id', id, 'name', name, 'words', note) ORDER BY id)) FROM item;
WITH RECURSIVE steps(n, s) AS (SELECT 1, cast('a' AS CHAR(2000)) UNION ALL SELECT n + 1, concat(s, n) FROM steps WHERE n < 200)
  SELECT n, md5(s) FROM steps;
UPDATE item SET note = concat(reverse(note), name) WHERE id % 3 = 0;
DELETE FROM item WHERE id % 7 = 0;
SELECT count(*), md5(group_concat(note ORDER BY id)) FROM item;
