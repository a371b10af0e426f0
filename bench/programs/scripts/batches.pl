# Sends requests to redis-server: batches.pl SOCKET FILE. All of a batch are sent before any answer is
# awaited; the echo at its end shows that all others have come. Says how many requests were answered
# in a second, and a digest of the answers.
use strict;
use warnings;
use Digest::MD5 'md5_hex';
use IO::Socket::UNIX;
use Time::HiRes 'time';

my ($socket, $file) = @ARGV;
my ($last, $ended) = ("ECHO end-of-batch\r\n", "\$12\r\nend-of-batch\r\n");
open my $requests, '<:raw', $file or die "$file: $!";
my @batches = do { local $/ = $last; <$requests> };
my $server = IO::Socket::UNIX->new($socket) or die "$socket: $!";
my ($count, $answers, $start) = (0, '', time);
for my $batch (@batches) {
    last unless substr($batch, -length $last) eq $last;
    $count += ($batch =~ tr/\n//) - 1;
    syswrite $server, $batch or die "cannot write: $!";
    my $got = '';
    until (length $got >= length $ended && substr($got, -length $ended) eq $ended) {
        sysread $server, $got, 1 << 16, length $got or die 'the server closed the connection';
    }
    $answers .= substr $got, 0, -length $ended;
}
printf "rate %.1f\n", $count / (time - $start);
die 'a request was refused' if $answers =~ /\r\n-ERR/;
print md5_hex($answers), "\n";
