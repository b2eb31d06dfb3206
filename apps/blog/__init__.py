"""A small blog: posts in Markdown, images, pages for people and a JSON API for programs.

The storage, the caches and the interface are settings, so that one of them can be changed while
everything else stays the same:

    gunicorn apps.blog.wsgi:app                                 blocking, posts in ./blog.sqlite
    BLOG_STORAGE=postgresql://localhost/blog BLOG_REDIS=redis://localhost BLOG_LOCAL=1 \\
        gunicorn -k uvicorn_worker.UvicornWorker apps.blog.asgi:app
    python -m apps.blog seed --posts 1000                       sample posts

The core is written once, as coroutines. Under ASGI they are awaited. Under WSGI they get blocking
drivers, so they never suspend and end at their first step (`blocking.finish`). A comparison of the
two interfaces thus involves neither a second framework nor a copy of the code.

    asgi, wsgi     the interfaces: a request in, a response out
    routes         limits of bodies, routing to handlers, and error responses
    pages, forms   HTML pages, and the forms for writing
    api, openapi   the JSON API and its description
    site           what all handlers share
    posts          the types, their validation, and the errors of a request
    repository     posts through the caches: order of lookups, writes and expiry
    local_cache    the cache inside a worker
    redis_cache    the cache that workers share
    storage/       one file per database, all with the same schema and migrations
    uploads        validation and storage of images
    metrics        round trips and time per request, published for outside observers
"""
