# rung.sh kind workers env...
kind=$1; n=$2; shift 2
export BLOG_STORAGE=postgresql://blog@127.0.0.1:5544/postgres
for e in "$@"; do export "$e"; done
if [ $kind = async ]; then C="-k uvicorn_worker.UvicornWorker proto_site:asgi"; else C="-k sync proto_site:wsgi"; fi
/tmp/lab/b/bin/python -m gunicorn -b 127.0.0.1:8123 --backlog 2048 -w $n $C > g.log 2>&1 & G=$!
for i in $(seq 50); do curl -s -o /dev/null 127.0.0.1:8123/posts/1 && break; sleep 0.2; done
c0=$(awk '{print $14+$15}' /proc/$(head -1 /tmp/lab/pg/data/postmaster.pid)/stat)
wrk -t1 -c1 -d2 --latency http://127.0.0.1:8123/posts/1 | grep -E "Requests/sec|50%"
wrk -t1 -c200 -d4 --timeout 20 --latency http://127.0.0.1:8123/posts/1 | grep -E "Requests/sec|50%|90%|99%|Non|Socket"
kill $G; wait $G 2>/dev/null
