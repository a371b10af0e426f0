{% macro integers(variables, terms, least) %}
{% for i in range(variables) %}
(declare-const x{{ i }} Int)
(assert (<= 0 x{{ i }} 40))
{% endfor %}
{% for i in range(variables) %}
(assert (<={{ least }} (+{% for term in range(terms) %} (* {{ 1 + below(9) }} x{{ below(variables) }}){% endfor %}) {{ 60 + below(200) }}))
{% endfor %}
{% endmacro %}
{% macro arrays(stores) %}
{# Stores in two orders make the same array when the places differ. #}
{% set values = list(stores, 1000) %}
(declare-const a (Array Int Int))
{% for i in range(stores) %}
(declare-const i{{ i }} Int)
{% endfor %}
(assert (distinct{% for i in range(stores) %} i{{ i }}{% endfor %}))
(assert (not (= {{ "(store " * stores }}a{% for i in range(stores) %} i{{ i }} {{ values[i] }}){% endfor %} {{ "(store " * stores }}a{% for i in range(stores)|reverse %} i{{ i }} {{ values[i] }}){% endfor %})))
(check-sat)
{% endmacro %}
{% macro factors(one, two) %}
{# The two factors of a product, as bit vectors. #}
(declare-const x (_ BitVec 24))
(declare-const y (_ BitVec 24))
(assert (= (bvmul x y) (_ bv{{ one * two }} 24)))
(assert (bvult x (_ bv4096 24)))
(assert (bvult y (_ bv4096 24)))
(assert (bvugt x (_ bv1 24)))
(assert (bvugt y x))
(check-sat)
(get-value (x y))
{% endmacro %}
{% set primes = [1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051] %}
{% for round in range(rounds) %}
{{ seed(round) }}{{ integers(30, 4, " 20") }}(check-sat)
(reset)
{{ seed(80) }}{{ arrays(80) }}(reset)
{{ factors(primes[round % 8], primes[(round + 3) % 8]) }}(reset)
{% endfor %}
{% if program %}
{# One pigeon too many for the holes: unsatisfiable, and tedious to show. #}
{% for pigeon in range(holes + 1) %}
{% for hole in range(holes) %}
(declare-const p{{ pigeon }}_{{ hole }} Bool)
{% endfor %}
(assert (or{% for hole in range(holes) %} p{{ pigeon }}_{{ hole }}{% endfor %}))
{% for other in range(pigeon) %}
{% for hole in range(holes) %}
(assert (not (and p{{ pigeon }}_{{ hole }} p{{ other }}_{{ hole }})))
{% endfor %}
{% endfor %}
{% endfor %}
(check-sat)
(reset)
(declare-const a (_ BitVec 7))
(declare-const b (_ BitVec 7))
(assert (not (= (bvmul a (bvadd b a)) (bvadd (bvmul b a) (bvmul a a)))))
(check-sat)
(reset)
{{ integers(holes, 5, "") }}(maximize (+{% for i in range(holes) %} x{{ i }}{% endfor %}))
(check-sat)
(get-objectives)
(reset)
(declare-const s String)
(declare-const t String)
(assert (= (str.++ s "-" t) "cairn-stone-cairn"))
(assert (str.prefixof "cairn" s))
(assert (> (str.len s) (str.len t)))
(check-sat)
(declare-const u String)
(assert (str.in_re u (re.+ (re.union (str.to_re "ab") (str.to_re "ba")))))
(assert (= (str.len u) 24))
(assert (not (str.contains u "aa")))
(check-sat)
(reset)
(declare-fun f (Int) Int)
(assert (forall ((x Int)) (! (= (f (f x)) (+ x 2)) :pattern ((f x)))))
(assert (= (f 0) 1))
(assert (not (= (f 1) 2)))
(check-sat)
{% endif %}
