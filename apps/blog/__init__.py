"""A small blog: posts in Markdown, images, pages for people and a JSON API for programs.

Where its posts stand, what is cached and how it is served are settings, so that one of them can be
changed with everything else the same:

    gunicorn apps.blog.wsgi:app                                 blocking, posts in ./blog.sqlite
    BLOG_STORAGE=postgresql://localhost/blog BLOG_REDIS=redis://localhost BLOG_LOCAL=1 \\
        gunicorn -k uvicorn_worker.UvicornWorker apps.blog.asgi:app
    python -m apps.blog seed --posts 1000                       something to read

The core is written once, as coroutines. Under ASGI they are awaited. Under WSGI they are given
drivers that block, never wait, and are therefore through at their first step (`blocking.finish`):
no second framework, no copy of the code, stands between what a comparison of the two measures.

    asgi, wsgi     the interfaces: a request in, a response out
    routes         how much of a body is taken, which handler answers, and what fails turned into
                   an answer
    pages, forms   what people see, and write in
    api, openapi   what programs see, and are told of it
    site           what all handlers work with
    posts          what may be said in one, and what can go wrong with a request
    repository     posts by way of the caches: who is asked first, what is put where, until when
    local_cache    inside a worker
    redis_cache    beside them
    storage/       one file per database, all with the same schema and the same steps to it
    uploads        images: what is taken, where it lies
    metrics        what each request cost in round trips and time, for whoever watches from outside
"""
