import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;

/** In memory, on loopback: prints its port, which is the one asked for or, for 0, a free one. */
public class Server {
  public static void main(String[] words) throws Exception {
    MongoServer server = new MongoServer(new MemoryBackend());
    server.bind("127.0.0.1", Integer.parseInt(words[0]));
    System.out.println(server.getLocalAddress().getPort());
    System.out.flush();
    Thread.sleep(Long.MAX_VALUE);
  }
}
