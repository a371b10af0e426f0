use strict;
use warnings;

my $seed = 42;
sub random { $seed = ($seed * 1103515245 + 12345) % 2147483648; return ($seed >> 8) % $_[0]; }

my ($sum, @kept) = (0);
for my $round (1 .. shift) {
    my (%texts, @branches);
    for my $i (1 .. 15000) {
        my $key = 'k' . random(4000);
        $texts{$key} .= chr(97 + random(26)) x (1 + random(20));
        delete $texts{'k' . random(4000)} if $i % 5 == 0;
        push @{ $branches[random(100)] },
            { id => $i, words => [split /[aeiou]/, $texts{$key} // ''] };
    }
    my $text = join ',', map { "$_=$texts{$_}" } sort keys %texts;
    (my $swapped = $text) =~ s/(\w)(\w)/$2$1/g;
    my @parts = $swapped =~ /(\d+)k?=([a-m]+)/g;
    $sum += length $_ for @parts;
    for my $branch (@branches) {
        $sum += scalar @{ $_->{words} } for @{ $branch || [] };
    }
    push @kept, \@branches;
    shift @kept if @kept > 3;
    my @steps = map { my $n = $_; sub { $n * $_[0] } } 1 .. 2000;
    $sum += $_->(3) for @steps;
}
print "$sum\n";
