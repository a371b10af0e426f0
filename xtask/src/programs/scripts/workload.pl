use strict; use warnings;
use Digest::MD5 qw(md5_hex);
use Storable qw(dclone freeze thaw);
use Config;

my $rounds = shift;
my $seed = 42;
sub rnd { $seed = ($seed * 1103515245 + 12345) % 2147483648; return ($seed >> 8) % $_[0]; }

my $digest = '';
for my $round (1 .. $rounds) {
    my (%h, @tree);
    for my $i (1 .. 20000) {
        my $key = 'k' . rnd(5000);
        $h{$key} .= chr(97 + rnd(26)) x (1 + rnd(20));
        delete $h{'k' . rnd(5000)} if $i % 5 == 0;
        push @{ $tree[rnd(100)] }, { id => $i, words => [split /[aeiou]/, $h{$key} // ''] };
    }
    my $text = join ',', map { "$_=" . ($h{$_} // '') } sort keys %h;
    (my $swapped = $text) =~ s/(\w)(\w)/$2$1/g;
    my @parts = $swapped =~ /k(\d+)=([a-m]+)/g;
    my $copy = thaw(freeze(dclone(\@tree)));
    my $words = 0;
    for my $branch (@$copy) { for my $leaf (@{ $branch || [] }) { $words += @{ $leaf->{words} }; } }
    my @subs = map { my $n = $_; sub { $n * $_[0] } } 1 .. 500;
    my $sum = 0; $sum += $_->(3) for @subs;
    my $big = 'x' x (1 << 20); $big .= $text for 1 .. 3; substr($big, 1000, 500000) = '';
    my $sorted = md5_hex(join '', sort { length $a <=> length $b || $a cmp $b } @parts);
    $digest = md5_hex($digest, $sorted, $words, $sum, md5_hex($big), sprintf('%s', scalar @parts));
    if ($round % 3 == 0) {
        pipe(my $in, my $out) or die;
        my $pid = fork() // die;
        if (!$pid) { close $in; print $out md5_hex($digest, map { $_ x 10 } keys %h) ? 'child' : ''; close $out; exit 0; }
        close $out; my $said = join '', <$in>; waitpid $pid, 0;
        die "child: $?" if $? || $said ne 'child';
    }
}
if ($Config{useithreads}) {
    require threads;
    my @threads = map { my $n = $_; threads->create(sub {
        my %own; $own{ $_ % 997 } .= "$n-$_;" for 1 .. 20000;
        return md5_hex(join '', map { $own{$_} } sort keys %own);
    }) } 1 .. 4;
    $digest = md5_hex($digest, map { $_->join } @threads);
}
print "$digest\n";
