"""HTTP/1 responses of every framing."""

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 1\r\n\r\n"
    b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_CLOSE = b"HTTP/1.0 200\r\nServer: x\r\n\r\nhello"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH
OTHER = LENGTH.replace(b"hello", b"hullo")
