import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Arrays;

import org.eclipse.californium.core.CoapResource;
import org.eclipse.californium.core.CoapServer;
import org.eclipse.californium.core.coap.CoAP.ResponseCode;
import org.eclipse.californium.core.config.CoapConfig;
import org.eclipse.californium.core.network.CoapEndpoint;
import org.eclipse.californium.core.server.resources.CoapExchange;
import org.eclipse.californium.elements.config.Configuration;

/** Serves /small and /large. Arguments: address, port, bytes of /small, bytes of /large, "duplicates" or "none". */
public final class CoapPeer {
    /** Largest body; the default of Californium is smaller than the large one. */
    private static final int BODY_SIZE_MAX = 1 << 20;

    private static final class Constant extends CoapResource {
        private final byte[] body;

        Constant(String name, int size) {
            super(name);
            body = new byte[size];
            Arrays.fill(body, (byte) 'x');
        }

        @Override
        public void handleGET(CoapExchange exchange) {
            exchange.respond(ResponseCode.CONTENT, body);
        }
    }

    public static void main(String[] arguments) throws Exception {
        CoapConfig.register();
        Configuration config = Configuration.createStandardWithoutFile();
        boolean suppresses = arguments[4].equals("duplicates");
        config.set(CoapConfig.DEDUPLICATOR,
                suppresses ? CoapConfig.DEDUPLICATOR_MARK_AND_SWEEP : CoapConfig.NO_DEDUPLICATOR);
        config.set(CoapConfig.MAX_RESOURCE_BODY_SIZE, BODY_SIZE_MAX);
        config.set(CoapConfig.PREFERRED_BLOCK_SIZE, 1024);
        config.set(CoapConfig.MAX_MESSAGE_SIZE, 1024);
        InetSocketAddress address =
                new InetSocketAddress(InetAddress.getByName(arguments[0]), Integer.parseInt(arguments[1]));
        CoapServer server = new CoapServer(config);
        server.addEndpoint(CoapEndpoint.builder().setConfiguration(config).setInetSocketAddress(address).build());
        server.add(new Constant("small", Integer.parseInt(arguments[2])));
        server.add(new Constant("large", Integer.parseInt(arguments[3])));
        server.start();
    }
}
