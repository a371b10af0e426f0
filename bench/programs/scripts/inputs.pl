# Makes an input that is the same on every machine and in every run: inputs.pl SEED KIND [NUMBER ...].
use strict;
use warnings;

srand shift;
my $kind = shift;

sub below { int rand $_[0] }
sub one_of { $_[rand @_] }

# Short ones far more often.
sub mostly_short {
    my ($least, $most) = @_;
    return $least + below(1 + below(1 + $most - $least));
}

# Words of a made-up language; short ones are the frequent ones, as in real ones.
my @syllables = qw(ka lo mi ter sun ra vel do is pan qu zor eth ny gal u);
my @words = map { join '', map { one_of(@syllables) } 0 .. mostly_short(0, 3) } 1 .. 5000;

sub words { join ' ', map { $words[rand @words] } 1 .. $_[0] }

# Lines of words.
sub text {
    my ($bytes) = @_;
    my $text = '';
    $text .= words(3 + below(12)) . "\n" while length $text < $bytes;
    print $text;
}

# A history for `git fast-import`: files that grow and change by a few lines at a time.
sub history {
    my ($commits) = @_;
    my %files;
    for my $commit (1 .. $commits) {
        my ($time, $message) = (1_700_000_000 + $commit * 60, "step $commit: " . words(6));
        print "commit refs/heads/main\ncommitter C <c\@example.com> $time +0000\n";
        print 'data ', length $message, "\n$message\n";
        for (0 .. below(6)) {
            my $path = sprintf 'd%d/f%d.txt', below(10), below(12);
            my $lines = $files{$path} //= [];
            for (1 .. mostly_short(4, 60)) {
                my $at = below(@$lines + 1);
                my $gone = $at < @$lines && below(3) == 0;
                splice @$lines, $at, $gone, $gone ? () : words(below(15));
            }
            my $content = join "\n", @$lines;
            print "M 644 inline $path\ndata ", length $content, "\n$content\n";
        }
    }
}

# One huge main would only show how optimisers fare on functions of that size, so nothing is put
# into it: functions with loops, switches and structures, and a main that calls all of them.
sub functions {
    my ($count) = @_;
    print "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\ntypedef unsigned long word;\n";
    for my $i (1 .. $count) {
        my $cases = join "\n", map {
            my ($times, $factor, $shift, $part) = (below(7), below(1 << 20), below(17), below(997));
            "case $_: for (word i = 0; i < $times; i++)
    sum = sum * $factor + (sum >> $shift) + (word)(table[(sum + i) % 16] * $part.5);
    break;";
        } 0 .. 3 + below(6);
        my $blocks = 2 + below(30);
        print <<"END";
struct cell$i { struct cell$i *next; word key; char name[24]; };
__attribute__((noinline)) static word f$i(word x, const double *table) {
  word sum = x;
  switch (x % 13) {
  $cases
  default: sum ^= $i;
  }
  struct cell$i *list = 0, *c;
  for (int i = 0; i < $blocks; i++) {
    c = malloc(sizeof *c);
    *c = (struct cell$i){list, sum + i};
    snprintf(c->name, sizeof c->name, "%lu", c->key);
    list = c;
  }
  for (; (c = list); free(c)) {
    list = c->next;
    sum += strlen(c->name) * c->key;
  }
  return sum;
}
END
    }
    my $calls = join '', map { "x = f$_(x, table);\n" } 1 .. $count;
    print <<"END";
int main(void) {
  double table[16] = {0, 0.5, 1, 1.5};
  word x = 1;
  for (int round = 0; round < 800; round++) {
$calls
  }
  printf("%lx\\n", x);
}
END
}

# Instances of templates of the standard library, and if it is to be a program, a main.
sub templates {
    my ($instances, $program) = @_;
    print "#include <$_>\n" for qw(algorithm deque functional iostream map memory set string unordered_map vector);
    for my $i (1 .. $instances) {
        my $factor = below(1 << 30);
        print <<"END";
struct Tag$i {
  unsigned long n;
  bool operator<(const Tag$i &other) const { return n < other.n; }
};
template class std::deque<std::pair<Tag$i, std::string>>;
template class std::set<Tag$i>;
template class std::unordered_map<unsigned long, std::vector<Tag$i>>;
unsigned long part$i(unsigned long keys) {
  std::map<Tag$i, std::vector<std::string>> groups;
  std::vector<std::function<unsigned long(Tag$i)>> steps;
  auto shared = std::make_shared<Tag$i>();
  for (unsigned long i = 0; i < keys; i++) {
    std::string key = "key" + std::to_string(i * $factor % 1013);
    groups[Tag${i}{i % 37}].push_back(key + std::string(i % 90, 'x'));
    steps.push_back([=](Tag$i tag) { return tag.n * 33 + key.size() + i + shared->n; });
  }
  std::sort(steps.begin(), steps.end(), [](auto &a, auto &b) { return a({1}) < b({1}); });
  for (auto &[tag, names] : groups)
    for (auto &name : names) shared->n = steps[name.size()](tag) * 131 + shared->n;
  return shared->n;
}
END
    }
    return unless $program;
    my $calls = join ' + ', map { "part$_(keys)" } 1 .. $instances;
    # Some 200 ms of work: a process that ends within a tick of the watch may go unseen.
    my $rounds = 1 + int(60 / $instances);
    print <<"END";
int main() {
  unsigned long sum = 0;
  for (int round = 0; round < $rounds; round++)
    for (unsigned long keys = 100; keys < 1000; keys += 45) sum = sum * 31 + $calls;
  std::cout << std::hex << sum << "\\n";
}
END
}

# Modules of Rust with traits, generics, iterators and formatting.
sub crate {
    my ($modules) = @_;
    print "//! Generated.\npub trait Shape { fn area(&self) -> f64; fn name(&self) -> String; }\n";
    for my $i (1 .. $modules) {
        my ($a, $b) = (1 + below(99), 1 + below(99));
        print <<"END";
pub mod m$i {
use super::Shape; use std::collections::{BTreeMap, HashMap};
#[derive(Clone, Debug, PartialEq, PartialOrd, Default)]
pub struct Item<T> { pub key: u64, pub values: Vec<T>, pub name: String }
#[derive(Clone, Debug)]
pub enum Kind { One(u64), Two { left: String, right: Box<Kind> }, Three(Vec<Kind>) }
impl Kind {
  pub fn depth(&self) -> usize { match self {
    Kind::One(n) if *n > $a => 2, Kind::One(_) => 1,
    Kind::Two { left, right } => left.len() % $b + right.depth(),
    Kind::Three(all) => all.iter().map(Kind::depth).max().unwrap_or($a),
  } }
}
impl<T: Clone + Into<f64>> Shape for Item<T> {
  fn area(&self) -> f64 { self.values.iter().cloned().map(Into::into).fold($a.0, |x, y: f64| x * $b.5 + y) }
  fn name(&self) -> String { format!("{}-{:>$b}", self.name, self.key) }
}
pub fn group(items: &[Item<f32>]) -> BTreeMap<String, Vec<u64>> {
  let mut by_key: HashMap<u64, Vec<&Item<f32>>> = HashMap::new();
  for item in items { by_key.entry(item.key % $b).or_default().push(item); }
  by_key.into_iter().map(|(key, all)| (format!("{key}"), all.iter().map(|i| i.key * $a).collect())).collect()
}
pub fn shapes(n: u64) -> Vec<Box<dyn Shape>> {
  (0..n).map(|key| Box::new(Item { key, values: vec![key as f32; $b], name: key.to_string() }) as Box<dyn Shape>).collect()
}
}
END
    }
}

# Classes of Java.
sub classes {
    my ($count) = @_;
    print "import java.util.*;\nimport java.util.function.*;\n";
    for my $i (1 .. $count) {
        my ($a, $b) = (below(1000), 1 + below(50));
        print <<"END";
class C$i<T extends Comparable<T>> {
  enum Kind { ONE, TWO, THREE }
  final Map<String, List<T>> all = new TreeMap<>();
  int f(Kind kind, int x) {
    switch (kind) { case ONE: return x * $a; case TWO: return x % $b; default: return -x; }
  }
  T largest(Collection<? extends T> from) {
    Function<T, String> name = t -> t + "$a";
    T best = null;
    for (T one : from) {
      if (best == null || one.compareTo(best) > 0) best = one;
      all.computeIfAbsent(name.apply(one), key -> new ArrayList<>($b)).add(one);
    }
    return best;
  }
}
END
    }
}

# What redis-server is asked. No answer may depend on the order of a hash table, which is random.
sub requests {
    my ($requests) = @_;
    my $value = '0123456789abcdef' x 125;
    for my $n (1 .. $requests) {
        my ($key, $field) = (below(20000), below(40));
        my ($small, $large) = map { substr $value, 0, mostly_short(8, $_) } 100, 2000;
        my ($few, $fewer) = ($key % 2000, $key % 200);
        print one_of(
            ("SET s$key $large") x 6, ("GET s$key") x 2, ("DEL s$key l$few") x 2,
            "APPEND s$key $small",
            ("HSET h$few f$field $small") x 2, "HDEL h$few f$field",
            ("LPUSH l$few $small") x 2, "RPOP l$few",
            "SADD m$fewer $small$key", "ZADD z$fewer $field $small$key", "DEL z$fewer m$field",
        ), "\r\n";
        print "ECHO end-of-batch\r\n" if $n % 16 == 0 || $n == $requests;
    }
}

# Questions to SQLite.
sub questions {
    my ($rows) = @_;
    print <<'END';
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, shelf INTEGER, price REAL, note TEXT);
CREATE TABLE shelf(id INTEGER PRIMARY KEY, label TEXT);
BEGIN;
END
    printf "INSERT INTO shelf VALUES(%d, '%s');\n", $_, words(3) for 0 .. 199;
    for (1 .. $rows) {
        my ($name, $shelf, $price, $note) = (words(1), below(200), below(100000), words(below(25)));
        print "INSERT INTO item(name, shelf, price, note) VALUES('$name', $shelf, $price / 100.0, '$note');\n";
    }
    print <<'END';
COMMIT;
CREATE INDEX item_name ON item(name);
CREATE INDEX item_shelf ON item(shelf, price);
UPDATE item SET note = note || ' ' || upper(name) WHERE id % 7 = 3;
SELECT count(*), sum(length(note)), round(sum(price), 2) FROM item;
SELECT s.label, count(*), group_concat(i.name, ' ') FROM item i JOIN shelf s ON s.id = i.shelf WHERE s.id < 30 GROUP BY s.id ORDER BY s.label;
SELECT a.shelf, count(*) FROM item a JOIN item b ON a.shelf = b.shelf AND a.price = b.price AND a.id < b.id GROUP BY a.shelf ORDER BY 2 DESC, 1 LIMIT 20;
SELECT id, rank() OVER (PARTITION BY shelf ORDER BY note, id) AS r FROM item ORDER BY r DESC, id LIMIT 50;
SELECT sum(json_array_length(j, '$.parts')) FROM (SELECT json_object('name', name, 'parts', json_array(shelf, price, note)) AS j FROM item);
DELETE FROM item WHERE id % 3 = 1;
SELECT count(DISTINCT name), max(note) FROM item;
PRAGMA integrity_check;
END
}

# PostScript: curves, shades, text in three fonts.
sub book {
    my ($pages) = @_;
    print "%!PS-Adobe-3.0\n";
    for my $page (1 .. $pages) {
        for (1 .. 150) {
            my ($start, $curve) = map { join ' ', map { below(600) } 1 .. $_ } 2, 6;
            my ($red, $end) = (below(10), one_of('closepath fill', 'stroke', 'stroke'));
            my $blue = 9 - $red;
            print "newpath $start moveto $curve curveto 0.$red 0.5 0.$blue setrgbcolor $end\n";
        }
        for my $line (1 .. 40) {
            my ($font, $size) = (one_of(qw(Times-Roman Helvetica-Bold Courier)), 6 + below(10));
            printf "/$font findfont $size scalefont setfont 30 %d moveto (%s) show\n", 798 - $line * 18, words(8);
        }
        print <<"END";
<< /ShadingType 2 /ColorSpace /DeviceRGB /Coords [0 0 $page 300] /Function
<< /FunctionType 2 /Domain [0 1] /C0 [1 0 0] /C1 [0 0 1] /N 1 >> >>
gsave 100 100 80 80 rectclip shfill grestore showpage
END
    }
}

sub integers {
    my ($variables, $terms, $least) = @_;
    for my $i (1 .. $variables) {
        print "(declare-const x$i Int)\n(assert (<= 0 x$i 40))\n";
    }
    for (1 .. $variables) {
        my $sum = join ' ', map { sprintf '(* %d x%d)', 1 + below(9), 1 + below($variables) } 1 .. $terms;
        printf "(assert (<= %s (+ %s) %d))\n", $least, $sum, 60 + below(200);
    }
}

# Problems for z3, and if they are for a proof, more of them, with so many holes for pigeons.
sub problems {
    my ($rounds, $holes) = @_;
    my @primes = (1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051);
    for my $round (0 .. $rounds - 1) {
        integers(30, 4, 20);
        # Stores in two orders make the same array when the places differ.
        my @stores = map { sprintf 'i%d %d)', $_, below(1000) } 1 .. 80;
        print "(check-sat)\n(reset)\n(declare-const a (Array Int Int))\n";
        print "(declare-const i$_ Int)\n" for 1 .. 80;
        print "(assert (distinct @{[map { \"i$_\" } 1 .. 80]}))\n";
        my ($one, $other) = map { '(store ' x 80 . "a @$_" } [@stores], [reverse @stores];
        # And the two factors of a product, as bit vectors.
        my $product = $primes[$round % 8] * $primes[($round + 3) % 8];
        print <<"END";
(assert (not (= $one $other)))
(check-sat)
(reset)
(declare-const x (_ BitVec 24))
(declare-const y (_ BitVec 24))
(assert (= (bvmul x y) (_ bv$product 24)))
(assert (bvult (_ bv1 24) x))
(assert (bvult x y))
(assert (bvult y (_ bv4096 24)))
(check-sat)
(get-value (x y))
(reset)
END
    }
    return unless $holes;
    # One pigeon too many for the holes: unsatisfiable, and tedious to show.
    for my $pigeon (0 .. $holes) {
        print "(declare-const p${pigeon}_$_ Bool)\n" for 1 .. $holes;
        print "(assert (or @{[map { \"p${pigeon}_$_\" } 1 .. $holes]}))\n";
        for my $other (0 .. $pigeon - 1) {
            print "(assert (not (and p${pigeon}_$_ p${other}_$_)))\n" for 1 .. $holes;
        }
    }
    print "(check-sat)\n(reset)\n";
    integers($holes, 5, '');
    print "(maximize (+ @{[map { \"x$_\" } 1 .. $holes]}))\n";
    print <<'END';
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
END
}

main->can($kind)->(@ARGV);
