-- No transfer of pgbench was lost or made up: every sum is the same, or this divides by zero.
SELECT a, b, t, h, n, 1 / (a = b AND b = t AND t = h AND n = :transactions)::int
  FROM (SELECT sum(abalance) AS a FROM pgbench_accounts) AS accounts,
    (SELECT sum(bbalance) AS b FROM pgbench_branches) AS branches,
    (SELECT sum(tbalance) AS t FROM pgbench_tellers) AS tellers,
    (SELECT sum(delta) AS h, count(*) AS n FROM pgbench_history) AS history;
