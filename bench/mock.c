/* Fast mock LLM upstream: single-threaded epoll HTTP/1.1 server, 127.0.0.1 only.
 * POST <any path>  body contains  "mock:n=100,d=0,b=1,s=0"  (anywhere)
 *    n = content chunks, d = delay between writes in microseconds (0 = none),
 *    b = SSE events per write, s = extra padding bytes per chunk, p=think-time us before the first byte
 *    "stream":true selects SSE, else one JSON answer (s pads it).
 * Every content delta is  wNNNNN@TTTTTTTTTTTTTTTT<pad><space>  with T = CLOCK_MONOTONIC ns / 10,
 * so that the load client (same machine) can check completeness and measure per-chunk delay.
 * GET /stats -> counters.   Usage: mock PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
#define MAXFD 65536
typedef struct conn {
  int fd;
  int hi; /* heap index, -1 none */
  char *in;
  int inlen, incap;
  char *out;
  int outlen, outoff, outcap;
  int streaming, n, i, b, s, usage;
  long d;
  u64 due;
  int want_out;
  int done_head;
} conn;
static conn *conns[MAXFD];
static int ep;
static conn *heap[MAXFD];
static int hn;
static u64 st_req, st_streams, st_done, st_abort, st_events, st_conns;

static u64 now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void hswap(int a, int b) {
  conn *t = heap[a];
  heap[a] = heap[b];
  heap[b] = t;
  heap[a]->hi = a;
  heap[b]->hi = b;
}
static void hup(int i) {
  while (i) {
    int p = (i - 1) / 2;
    if (heap[p]->due <= heap[i]->due)
      break;
    hswap(p, i);
    i = p;
  }
}
static void hdown(int i) {
  for (;;) {
    int l = 2 * i + 1, r = l + 1, m = i;
    if (l < hn && heap[l]->due < heap[m]->due)
      m = l;
    if (r < hn && heap[r]->due < heap[m]->due)
      m = r;
    if (m == i)
      break;
    hswap(i, m);
    i = m;
  }
}
static void hpush(conn *c) {
  c->hi = hn;
  heap[hn++] = c;
  hup(c->hi);
}
static void hdel(conn *c) {
  if (c->hi < 0)
    return;
  int i = c->hi;
  hn--;
  if (i != hn) {
    heap[i] = heap[hn];
    heap[i]->hi = i;
    hup(i);
    hdown(heap[i]->hi);
  }
  c->hi = -1;
}

static void need(conn *c, int k) {
  if (c->outlen + k > c->outcap) {
    c->outcap = (c->outlen + k) * 2;
    c->out = realloc(c->out, c->outcap);
  }
}
static void put(conn *c, const char *s, int k) {
  need(c, k);
  memcpy(c->out + c->outlen, s, k);
  c->outlen += k;
}
static void arm(conn *c, int out) {
  if (c->want_out == out)
    return;
  c->want_out = out;
  struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.fd = c->fd};
  epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void cclose(conn *c) {
  if (c->streaming)
    st_abort++;
  hdel(c);
  conns[c->fd] = 0;
  close(c->fd);
  free(c->in);
  free(c->out);
  free(c);
}
/* returns 0 ok/all written, 1 pending, -1 closed */
static int flush(conn *c) {
  while (c->outoff < c->outlen) {
    int k = send(c->fd, c->out + c->outoff, c->outlen - c->outoff, MSG_NOSIGNAL);
    if (k < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        arm(c, 1);
        return 1;
      }
      if (errno == EINTR)
        continue;
      cclose(c);
      return -1;
    }
    c->outoff += k;
  }
  c->outoff = c->outlen = 0;
  arm(c, 0);
  return 0;
}

static char pad[65536];
#define HEADER                                                                                                                   \
  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nx-request-id: "               \
  "req_mock_0001\r\nTransfer-Encoding: chunked\r\n\r\n"
#define PRE                                                                                                                      \
  "data: "                                                                                                                       \
  "{\"id\":\"chatcmpl-mock0001\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"mock-model\","          \
  "\"service_tier\":\"default\",\"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":[{\"index\":0,\"delta\":"
#define POST ",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
static void event(conn *c, const char *delta, int dl, const char *post, int pl) {
  char h[16];
  int tot = sizeof(PRE) - 1 + dl + pl;
  int k = sprintf(h, "%x\r\n", tot);
  need(c, tot + k + 2);
  char *o = c->out + c->outlen;
  memcpy(o, h, k);
  o += k;
  memcpy(o, PRE, sizeof(PRE) - 1);
  o += sizeof(PRE) - 1;
  memcpy(o, delta, dl);
  o += dl;
  memcpy(o, post, pl);
  o += pl;
  *o++ = '\r';
  *o++ = '\n';
  c->outlen = o - c->out;
  st_events++;
}
static void raw(conn *c, const char *s) {
  char h[16];
  int l = strlen(s);
  int k = sprintf(h, "%x\r\n", l);
  put(c, h, k);
  put(c, s, l);
  put(c, "\r\n", 2);
}
static int content(char *d, int seq, int s, u64 t) { /* wNNNNN@16digits pad space */
  memcpy(d, "{\"content\":\"w", 13);
  char *p = d + 13;
  int v = seq;
  for (int j = 4; j >= 0; j--) {
    p[j] = '0' + v % 10;
    v /= 10;
  }
  p += 5;
  *p++ = '@';
  u64 x = t / 10;
  for (int j = 15; j >= 0; j--) {
    p[j] = '0' + x % 10;
    x /= 10;
  }
  p += 16;
  memcpy(p, pad, s);
  p += s;
  *p++ = ' ';
  *p++ = '"';
  *p++ = '}';
  return p - d;
}
static void fill(conn *c) { /* next write */
  if (!c->done_head) {
    put(c, HEADER, sizeof(HEADER) - 1);
    static const char role[] = "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}";
    event(c, role, sizeof(role) - 1, POST, sizeof(POST) - 1);
    c->done_head = 1;
  }
  static char d[70000];
  u64 t = now_ns();
  for (int k = 0; k < c->b && c->i < c->n; k++) {
    c->i++;
    int l = content(d, c->i, c->s, t);
    event(c, d, l, POST, sizeof(POST) - 1);
  }
  if (c->i >= c->n) {
    static const char fin[] = ",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n";
    event(c, "{}", 2, fin, sizeof(fin) - 1);
    if (c->usage) {
      char u[512];
      sprintf(u,
              "data: "
              "{\"id\":\"chatcmpl-mock0001\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"mock-"
              "model\",\"service_tier\":\"default\",\"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":[],\"usage\":{\"prompt_"
              "tokens\":12,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
              c->n, c->n + 12);
      raw(c, u);
    }
    raw(c, "data: [DONE]\n\n");
    put(c, "0\r\n\r\n", 5);
    c->streaming = 0;
    st_done++;
  }
}
static int parse(conn *c);
/* pump a no-delay stream: budget writes per turn for fairness */
static int pump(conn *c) {
  int r = flush(c);
  if (r)
    return r;
  for (int w = 0; c->streaming && c->d == 0 && w < 256; w++) {
    fill(c);
    r = flush(c);
    if (r)
      return r;
  }
  if (c->streaming && c->d == 0)
    arm(c, 1);
  if (!c->streaming && c->inlen)
    return parse(c);
  return 0;
}
static long param(const char *m, const char *k, long def) {
  const char *e = m;
  while (*e && *e != '"' && *e != '\\' && *e != ' ')
    e++;
  char kk[8];
  sprintf(kk, "%s=", k);
  for (const char *p = m; p < e; p++)
    if (!strncmp(p, kk, 2))
      return atol(p + 2);
  return def;
}
static void consume(conn *c, int k) {
  memmove(c->in, c->in + k, c->inlen - k);
  c->inlen -= k;
  c->in[c->inlen] = 0;
}
static int parse(conn *c) {
  for (;;) {
    if (c->streaming || !c->inlen)
      return 0;
    char *he = memmem(c->in, c->inlen, "\r\n\r\n", 4);
    if (!he)
      return 0;
    int hl = he - c->in + 4;
    long cl = 0;
    int chunked = 0;
    *he = 0;
    char *p = strcasestr(c->in, "\r\ncontent-length:");
    if (p)
      cl = atol(p + 17);
    if (strcasestr(c->in, "\r\ntransfer-encoding: chunked"))
      chunked = 1;
    int exp100 = strcasestr(c->in, "\r\nexpect: 100") != 0;
    *he = '\r';
    int tot;
    if (chunked) {
      char *z = memmem(c->in + hl - 2, c->inlen - hl + 2, "\r\n0\r\n\r\n", 7);
      if (!z)
        return 0;
      tot = z + 7 - c->in;
    } else {
      if (c->inlen < hl + cl) {
        if (exp100 && c->inlen == hl) {
          put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
          return flush(c);
        }
        return 0;
      }
      tot = hl + cl;
    }
    char save = c->in[tot];
    c->in[tot] = 0;
    char *body = c->in + hl;
    st_req++;
    if (!strncmp(c->in, "GET ", 4)) {
      char b[512], o[1024];
      int l;
      if (!strncmp(c->in, "GET /stats", 10))
        l = sprintf(
            b, "{\"requests\":%llu,\"streams\":%llu,\"done\":%llu,\"aborted\":%llu,\"events\":%llu,\"conns\":%llu,\"active\":%d}",
            st_req, st_streams, st_done, st_abort, st_events, st_conns, hn);
      else
        l = sprintf(
            b,
            "{\"object\":\"list\",\"data\":[{\"id\":\"mock-model\",\"object\":\"model\",\"created\":1,\"owned_by\":\"mock\"}]}");
      int k = sprintf(o, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", l, b);
      put(c, o, k);
      c->in[tot] = save;
      consume(c, tot);
      int r = flush(c);
      if (r)
        return r;
      continue;
    }
    char *m = strstr(body, "mock:");
    long n = m ? param(m, "n", 10) : 10, d = m ? param(m, "d", 0) : 0, b = m ? param(m, "b", 1) : 1, s = m ? param(m, "s", 0) : 0,
         pz = m ? param(m, "p", 0) : 0;
    if (b < 1)
      b = 1;
    if (s > 65000)
      s = 65000;
    int stream = strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true");
    int usage = strstr(body, "\"include_usage\":true") || strstr(body, "\"include_usage\": true");
    c->in[tot] = save;
    consume(c, tot);
    if (!stream) {
      static char o[1024], bd[140000];
      static char dd[70000];
      int l = content(dd, 0, s, now_ns());
      dd[l - 1] = 0; /* {"content":"..." */
      int bl =
          sprintf(bd,
                  "{\"id\":\"chatcmpl-mock0001\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"mock-model\","
                  "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",%s,\"refusal\":null,\"annotations\":[]},"
                  "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":9,"
                  "\"total_tokens\":21,\"prompt_tokens_details\":{\"cached_tokens\":0,\"audio_tokens\":0},\"completion_tokens_"
                  "details\":{\"reasoning_tokens\":0,\"audio_tokens\":0,\"accepted_prediction_tokens\":0,\"rejected_prediction_"
                  "tokens\":0}},\"service_tier\":\"default\",\"system_fingerprint\":\"fp_44709d6fcb\"}",
                  dd + 1);
      int k = sprintf(
          o, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nx-request-id: req_mock_0001\r\nContent-Length: %d\r\n\r\n",
          bl);
      put(c, o, k);
      put(c, bd, bl);
      int r = flush(c);
      if (r)
        return r;
      continue;
    }
    st_streams++;
    c->streaming = 1;
    c->n = n;
    c->i = 0;
    c->d = d;
    c->b = b;
    c->s = s;
    c->usage = usage;
    c->done_head = 0;
    if (pz > 0 && d == 0) {
      c->d = 1;
    }
    if (c->d == 0)
      return pump(c);
    c->due = now_ns() + pz * 1000;
    hpush(c);
    return 0;
  }
}
static void tick(void) {
  u64 t = now_ns();
  while (hn && heap[0]->due <= t) {
    conn *c = heap[0];
    hdel(c);
    if (c->outlen > 1 << 20) {
      c->due = t + 1000000;
      hpush(c);
      continue;
    } /* client not reading: hold */
    fill(c);
    c->due += (u64)c->d * 1000;
    if (c->streaming)
      hpush(c);
    int r = flush(c);
    if (r < 0)
      continue;
    if (r == 0 && !c->streaming && c->inlen)
      parse(c);
  }
}
static int onread(conn *c) {
  for (;;) {
    if (c->incap - c->inlen < 8192) {
      c->incap = c->incap * 2 + 16384;
      c->in = realloc(c->in, c->incap + 1);
    }
    int room = c->incap - c->inlen;
    int k = recv(c->fd, c->in + c->inlen, room, 0);
    if (k == 0) {
      cclose(c);
      return -1;
    }
    if (k < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK)
        break;
      if (errno == EINTR)
        continue;
      cclose(c);
      return -1;
    }
    c->inlen += k;
    c->in[c->inlen] = 0;
    if (k < room)
      break;
  }
  return parse(c);
}
int main(int ac, char **av) {
  int port = ac > 1 ? atoi(av[1]) : 9000;
  signal(SIGPIPE, SIG_IGN);
  memset(pad, 'x', sizeof pad);
  int ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  int one = 1;
  setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(ls, (void *)&a, sizeof a) || listen(ls, 4096)) {
    perror("bind");
    return 1;
  }
  ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = ls};
  epoll_ctl(ep, EPOLL_CTL_ADD, ls, &e);
  static struct epoll_event ev[1024];
  for (;;) {
    struct timespec ts, *tp = 0;
    if (hn) {
      u64 t = now_ns();
      u64 dl = heap[0]->due > t ? heap[0]->due - t : 0;
      ts.tv_sec = dl / 1000000000ull;
      ts.tv_nsec = dl % 1000000000ull;
      tp = &ts;
    }
    int k = epoll_pwait2(ep, ev, 1024, tp, 0);
    for (int i = 0; i < k; i++) {
      int fd = ev[i].data.fd;
      if (fd == ls) {
        for (;;) {
          int f = accept4(ls, 0, 0, SOCK_NONBLOCK);
          if (f < 0)
            break;
          if (f >= MAXFD) {
            close(f);
            continue;
          }
          setsockopt(f, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
          conn *c = calloc(1, sizeof *c);
          c->fd = f;
          c->hi = -1;
          c->incap = 8192;
          c->in = malloc(c->incap + 1);
          conns[f] = c;
          st_conns++;
          struct epoll_event x = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = f};
          epoll_ctl(ep, EPOLL_CTL_ADD, f, &x);
        }
        continue;
      }
      conn *c = conns[fd];
      if (!c)
        continue;
      if (ev[i].events & (EPOLLERR | EPOLLHUP)) {
        cclose(c);
        continue;
      }
      if (ev[i].events & (EPOLLIN | EPOLLRDHUP)) {
        if (onread(c) < 0)
          continue;
        if (conns[fd] != c)
          continue;
      }
      if (ev[i].events & EPOLLOUT)
        pump(c);
    }
    tick();
  }
}
