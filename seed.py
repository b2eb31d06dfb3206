from apps.blog import settings as S
from apps.blog.storage import storage_of
from apps.blog.blocking import finish
from apps.blog.posts import Draft
st=storage_of(S.read(), waiting=False)
finish(st.prepare())
print(finish(st.add([Draft.of(f'Post {i}', 'Hello *world*\n\n'*40) for i in range(20)]))[0].id)
