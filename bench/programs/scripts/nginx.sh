# Makes nginx's settings: nginx.sh FOLDER PORT PAGES WORKERS SETTINGS.
mkdir -p "$1/tmp"
# As root the workers would become another user, who may not read or write here.
[ "$(id -u)" != 0 ] || user="user root root;"
cat >"$1/nginx.conf" <<END
daemon off;
$user
worker_processes $4;
pid nginx.pid;
error_log error.log notice;
events { worker_connections 256; }
http {
  $(for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path tmp/$kind;"; done)
  $5
  gzip on;
  gzip_types text/plain;
  default_type text/plain;
  server {
    listen 127.0.0.1:$2;
    root $3;
  }
}
END
