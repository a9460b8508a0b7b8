// A private Sigstore on 127.0.0.1: the certificate authority and the transparency log of @sigstore/mock over HTTP.
// Prints one line of JSON when it listens: its address and what a client has to trust.
//   node sigstore_server.cjs NODE_MODULES
const { createHash, generateKeyPairSync } = require('node:crypto');
const { createServer } = require('node:http');
const { join } = require('node:path');
const mock = require(join(process.argv[2], '@sigstore/mock'));

const START = '2020-01-01T00:00:00Z';
const digest = (bytes) => createHash('sha256').update(bytes).digest();
const key = () => generateKeyPairSync('ec', { namedCurve: 'prime256v1' });

// The mock takes the identity from the body and a signing request as text: Fulcio takes a header, too, and base64.
function asked(body, headers) {
  const { certificateSigningRequest } = JSON.parse(body);
  return JSON.stringify({
    credentials: { oidcIdentityToken: (headers.authorization ?? '').replace('Bearer ', '') },
    certificateSigningRequest: Buffer.from(certificateSigningRequest, 'base64').toString(),
  });
}

// The mock logs an entry as it was proposed. Rekor logs of a DSSE envelope its digests and signatures.
function logged(proposed) {
  if (proposed.kind !== 'dsse') return proposed;
  const { envelope, verifiers } = proposed.spec.proposedContent;
  const { payload, signatures } = JSON.parse(envelope);
  const hash = (bytes) => ({ algorithm: 'sha256', value: digest(bytes).toString('hex') });
  const spec = {
    envelopeHash: hash(envelope),
    payloadHash: hash(Buffer.from(payload, 'base64')),
    signatures: signatures.map(({ sig }, place) => ({ signature: sig, verifier: verifiers[place] })),
  };
  return { apiVersion: proposed.apiVersion, kind: proposed.kind, spec };
}

function log(baseUrl, publicKey) {
  const details = { rawBytes: publicKey.toString('base64'), keyDetails: 'PKIX_ECDSA_P256_SHA_256', validFor: { start: START } };
  return { baseUrl, hashAlgorithm: 'SHA2_256', publicKey: details, logId: { keyId: digest(publicKey).toString('base64') } };
}

async function main() {
  const ctlog = await mock.initializeCTLog(key());
  const ca = await mock.initializeCA(key(), ctlog);
  const handlers = {};
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk) => (body += chunk));
    request.on('end', async () => {
      const handler = handlers[`${request.method} ${request.url}`];
      const answer = handler ? await handler(body, request.headers) : { statusCode: 404, response: 'there is no such place' };
      response.writeHead(answer.statusCode, { 'Content-Type': answer.contentType ?? 'text/plain' }).end(answer.response);
    });
  });
  server.listen(0, '127.0.0.1', async () => {
    const url = `http://127.0.0.1:${server.address().port}`;
    const tlog = await mock.initializeTLog(url, key());
    const fulcio = mock.fulcioHandler(ca);
    const rekor = mock.rekorHandler(tlog);
    const oidc = JSON.stringify({ issuer: url, authorization_endpoint: `${url}/auth`, token_endpoint: `${url}/token` });
    handlers['GET /.well-known/openid-configuration'] = async () => ({ statusCode: 200, response: oidc });
    handlers[`POST ${fulcio.path}`] = (body, headers) => fulcio.fn(asked(body, headers));
    handlers[`POST ${rekor.path}`] = (body) => rekor.fn(JSON.stringify(logged(JSON.parse(body))));
    const service = { url, majorApiVersion: 1, validFor: { start: START }, operator: 'private' };
    const root = { rawBytes: Buffer.from(ca.rootCertificate).toString('base64') };
    const trust = {
      mediaType: 'application/vnd.dev.sigstore.clienttrustconfig.v0.1+json',
      trustedRoot: {
        mediaType: 'application/vnd.dev.sigstore.trustedroot+json;version=0.1',
        tlogs: [log(url, tlog.publicKey)],
        ctlogs: [log(url, Buffer.from(ctlog.publicKey))],
        certificateAuthorities: [
          { subject: { organization: 'private', commonName: 'sigstore' }, uri: url, certChain: { certificates: [root] }, validFor: { start: START } },
        ],
        timestampAuthorities: [],
      },
      signingConfig: {
        mediaType: 'application/vnd.dev.sigstore.signingconfig.v0.2+json',
        caUrls: [service],
        oidcUrls: [service],
        rekorTlogUrls: [service],
        tsaUrls: [],
        rekorTlogConfig: { selector: 'ANY' },
        tsaConfig: { selector: 'ANY' },
      },
    };
    console.log(JSON.stringify({ url, trust }));
  });
}

main();
