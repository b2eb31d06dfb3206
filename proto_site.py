import os, sys, asyncio
from apps.blog import settings as S
from apps.blog.storage import storage_of
from apps.blog.shelf import Shelf
from apps.blog.shared import Shared
from apps.blog.blocking import finish
from apps.blog.ledger import LEDGER
import jinja2, werkzeug
from werkzeug.wrappers import Request, Response
from werkzeug.routing import Map, Rule
T = jinja2.Environment(autoescape=True).from_string("<!doctype html><html><head><title>{{post.title}}</title></head><body><h1>{{post.title}}</h1><p>{{post.created}}</p>{{post.html|safe}}<footer>{% for i in range(10) %}<a href=/posts/{{i}}>{{i}}</a>{% endfor %}</footer></body></html>")
M = Map([Rule('/posts/<int:number>', endpoint='post'), Rule('/', endpoint='list'), Rule('/posts/<int:number>/edit', endpoint='edit')])
def make(waiting):
    st = S.read()
    return Shelf(st, storage_of(st, waiting=waiting), Shared(st, waiting=waiting) if st.redis_url else None)
async def respond(shelf, request):
    LEDGER.add("requests")
    ep, args = M.bind_to_environ(request.environ).match()
    post = await shelf.post(args['number'])
    with LEDGER.timed("template_ns"):
        text = T.render(post=post)
    return Response(text, content_type='text/html; charset=utf-8')
shelf_w = None
def wsgi(environ, start_response):
    global shelf_w
    if shelf_w is None: shelf_w = make(False)
    return finish(respond(shelf_w, Request(environ)))(environ, start_response)
shelf_a = None
async def asgi(scope, receive, send):
    global shelf_a
    if scope['type'] == 'lifespan':
        while True:
            e=(await receive())['type']; await send({'type': e+'.complete'})
            if e.endswith('shutdown'): return
    if shelf_a is None: shelf_a = make(True)
    environ = {'REQUEST_METHOD': scope['method'], 'SCRIPT_NAME': '', 'PATH_INFO': scope['path'], 'QUERY_STRING': scope['query_string'].decode('latin-1'), 'SERVER_NAME': 'x', 'SERVER_PORT': '80', 'wsgi.url_scheme': 'http', 'SERVER_PROTOCOL':'HTTP/1.1'}
    for k, v in scope['headers']:
        environ['HTTP_'+k.decode('latin-1').upper().replace('-', '_')] = v.decode('latin-1')
    r = await respond(shelf_a, Request(environ))
    await send({'type':'http.response.start','status':r.status_code,'headers':[(k.lower().encode(),v.encode()) for k,v in r.headers]})
    await send({'type':'http.response.body','body':r.get_data()})
