/* Load generator for the mock: single-threaded epoll client, closed loop for each connection.
 * load -p PORT [-F chat|anthropic|responses] [-u path] [-H 'k: v']... [-M model] -m ns|st -c CONNECTIONS (-T secs | -k total)
 *      [-n chunks] [-d us] [-b batch] [-s pad] [-r ramp_ms] [-w warm_secs] [-A key] [-U] [-K]
 * Prints one JSON line. A stream counts as ok only when all n tokens arrived in order and whole, the endpoint's finish reason and
 * its last event were seen and the HTTP body ended properly.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
typedef unsigned long long u64;
typedef long long i64;
static u64 now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}
/* log-linear histogram, 1/64 relative resolution, ns */
#define SUB 64
typedef struct {
  u64 c[64 * SUB];
  u64 n;
  double sum;
  u64 max;
} hist;
static void hadd(hist *h, i64 v) {
  if (v < 0)
    v = 0;
  u64 x = v;
  int e = x < SUB ? 0 : (63 - __builtin_clzll(x) - 5);
  int idx = (int)x;
  if (x >= SUB) {
    int s = x >> e;
    idx = (e)*SUB + s;
    if (idx >= 64 * SUB)
      idx = 64 * SUB - 1;
  }
  h->c[idx]++;
  h->n++;
  h->sum += v;
  if (x > h->max)
    h->max = x;
}
static double hq(hist *h, double q) {
  if (!h->n)
    return 0;
  u64 t = (u64)(q * h->n);
  if (t >= h->n)
    t = h->n - 1;
  u64 a = 0;
  for (int i = 0; i < 64 * SUB; i++) {
    a += h->c[i];
    if (a > t) {
      double v;
      if (i < SUB)
        v = i;
      else {
        int e = i / SUB, s = i % SUB;
        if (s < 32) {
          e -= 1;
          s += 64;
        }
        v = ((double)s + 0.5) * (double)(1ull << e);
      }
      if (v > h->max)
        v = h->max;
      return v / 1e3;
    }
  }
  return h->max / 1e3;
}

typedef struct {
  int fd;
  int st; /*0 idle 1 connecting 2 sending 3 headers 4 body*/
  int busy;
  char *ob;
  int ol, oo;
  char *in;
  int inl, incap;
  int status, chunked, closeconn;
  i64 cl;
  i64 clen;
  int cst;
  i64 crem; /* chunk state: 0 size 1 data 2 crlf 3 trailer */
  char csz[32];
  int cszl;
  char *ln;
  int lnl, lncap;
  int seq, tpos;
  u64 tts;
  int bad, fin, done, anytok, eof;
  u64 t0, tlast;
  u64 startat;
  int first;
  u64 bytes;
} cn;
static int port = 0, conc = 1, nch = 100, bat = 1, padn = 0, ramp = 0, usage = 0, stream = 0;
static long dus = 0;
static double T = 0, warm = 0;
static long total = 0;
static const char *path = 0, *model = "mock-model";
static char hdrs[4096];
static const char *auth = "sk-1234";
static int closeafter = 0;
static cn *C;
static int ep;
static long started, okc, errc, incompl, non200;
static hist Hlat, Httfc, Hdel, Hgap;
static u64 events, bytes;
static u64 tstart, tend;
static int measuring = 1;
static int inflight;
static long neterr;
static u64 tokcount;
/* The request body of each endpoint, and the fields of its answers with the text, the finish reason and the last event. */
typedef struct {
  const char *name, *path, *before, *after, *limit, *piece, *whole, *finish, *reason, *last;
} endpoint_t;
static const endpoint_t endpoints[] = {
    {"chat", "/v1/chat/completions",
     "\"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"},{\"role\":\"user\",\"content\":\"", "\"}]",
     "max_tokens", "\"content\":", "\"content\":", "\"finish_reason\":", "\"stop\"", 0},
    {"anthropic", "/v1/messages", "\"system\":\"You are a helpful assistant.\",\"messages\":[{\"role\":\"user\",\"content\":\"",
     "\"}]", "max_tokens", "\"text\":", "\"text\":", "\"stop_reason\":", "\"end_turn\"", "\"message_stop\""},
    {"responses", "/v1/responses",
     "\"instructions\":\"You are a helpful assistant.\",\"input\":[{\"role\":\"user\",\"content\":\"", "\"}]",
     "max_output_tokens", "\"delta\":", "\"text\":", "\"status\":", "\"completed\"", "\"response.completed\""}};
static const endpoint_t *endpoint = &endpoints[0];
static char req[16384];
static int reql;
static int toklen;
static char errsample[400];
static void mkreq(void) {
  static char body[8192];
  int l = sprintf(body, "{\"model\":\"%s\",%smock:n=%d,d=%ld,b=%d,s=%d%s,\"temperature\":0.7,\"%s\":512%s%s}", model,
                  endpoint->before, nch, dus, bat, padn, endpoint->after, endpoint->limit, stream ? ",\"stream\":true" : "",
                  usage && stream ? ",\"stream_options\":{\"include_usage\":true}" : "");
  reql = sprintf(req,
                 "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nAccept: */*\r\nAuthorization: "
                 "Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s",
                 path ? path : endpoint->path, port, auth, hdrs, l, body);
  toklen = 1 + 5 + 1 + 16 + padn + 1;
}
static void ctl(cn *c, int op, unsigned ev) {
  struct epoll_event e = {.events = ev, .data.ptr = c};
  epoll_ctl(ep, op, c->fd, &e);
}
static void dial(cn *c) {
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  int one = 1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int r = connect(c->fd, (void *)&a, sizeof a);
  c->st = (r < 0 && errno == EINPROGRESS) ? 1 : 2;
  ctl(c, EPOLL_CTL_ADD, EPOLLIN | (c->st == 1 ? EPOLLOUT : 0));
}
static int stopped(void) {
  if (total)
    return started >= total;
  return now_ns() >= tend;
}
static void sendreq(cn *c) {
  while (c->oo < reql) {
    int k = send(c->fd, req + c->oo, reql - c->oo, MSG_NOSIGNAL);
    if (k < 0) {
      if (errno == EAGAIN)
        return;
      break;
    }
    c->oo += k;
  }
  c->st = 3;
  ctl(c, EPOLL_CTL_MOD, EPOLLIN);
}
static void begin(cn *c) {
  if (c->busy)
    return;
  if (stopped())
    return;
  started++;
  c->busy = 1;
  inflight++;
  c->inl = 0;
  c->oo = 0;
  c->cst = 0;
  c->cszl = 0;
  c->lnl = 0;
  c->seq = 0;
  c->tpos = 0;
  c->bad = c->fin = c->done = c->anytok = c->eof = 0;
  c->first = 1;
  c->chunked = 0;
  c->cl = -1;
  c->clen = 0;
  c->closeconn = 0;
  c->t0 = now_ns();
  c->tlast = 0;
  c->bytes = 0;
  if (c->fd < 0)
    dial(c);
  if (c->st != 1) {
    c->st = 2;
    sendreq(c);
  }
}
static void drop(cn *c) {
  if (c->fd >= 0) {
    close(c->fd);
    c->fd = -1;
  }
  c->st = 0;
}
static void finish(cn *c, int clean) {
  u64 t = now_ns();
  c->busy = 0;
  inflight--;
  int ok = clean && c->status == 200 && !c->bad;
  if (stream)
    ok = ok && c->seq == nch && c->tpos == 0 && c->fin && c->done;
  else
    ok = ok && c->anytok;
  if (c->status != 200 && c->status)
    non200++;
  if (!clean)
    neterr++;
  if (ok)
    okc++;
  else {
    errc++;
    if (clean && c->status == 200)
      incompl++;
    if (!errsample[0])
      snprintf(errsample, sizeof errsample, "status=%d clean=%d bad=%d seq=%d/%d tpos=%d fin=%d done=%d in=%.200s", c->status,
               clean, c->bad, c->seq, nch, c->tpos, c->fin, c->done, c->in ? c->in : "");
  }
  if (measuring && ok)
    hadd(&Hlat, t - c->t0);
  if (!clean || c->closeconn || closeafter)
    drop(c);
  else
    c->st = 2;
  begin(c);
}
static void tokens(cn *c, const char *s, int l, u64 now) {
  for (int i = 0; i < l; i++) {
    char ch = s[i];
    int p = c->tpos;
    if (p == 0) {
      if (ch != 'w') {
        c->bad = 1;
        return;
      }
      c->tts = 0;
      c->oo = 0;
    } else if (p <= 5) {
      if (ch < '0' || ch > '9') {
        c->bad = 2;
        return;
      }
      c->oo = c->oo * 10 + (ch - '0');
    } else if (p == 6) {
      if (ch != '@') {
        c->bad = 3;
        return;
      }
      if (stream && c->oo != c->seq + 1) {
        c->bad = 4;
        return;
      }
    } else if (p <= 22) {
      if (ch < '0' || ch > '9') {
        c->bad = 5;
        return;
      }
      c->tts = c->tts * 10 + (ch - '0');
    } else if (p < toklen - 1) {
      if (ch != 'x') {
        c->bad = 6;
        return;
      }
    } else {
      if (ch != ' ') {
        c->bad = 7;
        return;
      }
    }
    if (++c->tpos == toklen) {
      c->tpos = 0;
      c->seq++;
      c->anytok = 1;
      tokcount++;
      if (measuring && stream) {
        hadd(&Hdel, (i64)now - (i64)(c->tts * 10));
        if (c->tlast)
          hadd(&Hgap, now - c->tlast);
        else
          hadd(&Httfc, now - c->t0);
      }
      c->tlast = now;
    }
  }
}
/* the value that stands first behind this key, 0 if there is none */
static char *value(char *s, char *e, const char *key) {
  int k = strlen(key);
  char *p = memmem(s, e - s, key, k);
  if (!p)
    return 0;
  p += k;
  while (p < e && *p == ' ')
    p++;
  return p < e ? p : 0;
}
static int is(char *p, char *e, const char *word) {
  int k = strlen(word);
  return p && e - p >= k && !memcmp(p, word, k);
}
/* every string behind this key is text of the answer */
static void content(cn *c, char *s, int l, const char *key, u64 now) {
  char *p = s, *e = s + l;
  while ((p = value(p, e, key))) {
    if (*p == '"') {
      p++;
      char *q = memchr(p, '"', e - p);
      if (!q)
        return;
      tokens(c, p, q - p, now);
      p = q;
    }
  }
}
static void line(cn *c, char *s, int l, u64 now) {
  if (l && s[l - 1] == '\r')
    l--;
  if (l < 5 || memcmp(s, "data:", 5))
    return;
  s += 5;
  l -= 5;
  if (l && *s == ' ') {
    s++;
    l--;
  }
  events++;
  char *e = s + l;
  if (endpoint->last ? is(value(s, e, "\"type\":"), e, endpoint->last) : l == 6 && !memcmp(s, "[DONE]", 6)) {
    c->done = 1;
    if (!endpoint->last)
      return;
  }
  content(c, s, l, endpoint->piece, now);
  if (!c->fin)
    c->fin = is(value(s, e, endpoint->finish), e, endpoint->reason);
}
static void body(cn *c, char *s, int l, u64 now) {
  c->bytes += l;
  bytes += l;
  if (!stream) { /* keep whole body */
    if (c->lnl + l + 1 > c->lncap) {
      c->lncap = (c->lnl + l) * 2 + 4096;
      c->ln = realloc(c->ln, c->lncap);
    }
    memcpy(c->ln + c->lnl, s, l);
    c->lnl += l;
    return;
  }
  while (l) {
    char *n = memchr(s, '\n', l);
    int k = n ? n - s : l;
    if (n && !c->lnl) {
      line(c, s, k, now);
      s = n + 1;
      l -= k + 1;
      continue;
    }
    if (c->lnl + k + 1 > c->lncap) {
      c->lncap = (c->lnl + k) * 2 + 4096;
      c->ln = realloc(c->ln, c->lncap);
    }
    memcpy(c->ln + c->lnl, s, k);
    c->lnl += k;
    if (n) {
      line(c, c->ln, c->lnl, now);
      c->lnl = 0;
      s = n + 1;
      l -= k + 1;
    } else {
      l = 0;
    }
  }
}
static void complete(cn *c) {
  if (!stream)
    content(c, c->ln, c->lnl, endpoint->whole, now_ns());
  finish(c, 1);
}
/* feed raw body bytes; returns 1 when message complete */
static int feed(cn *c, char *s, int l, u64 now) {
  if (!c->chunked) {
    if (c->cl >= 0) {
      if (l > c->cl - c->clen)
        l = c->cl - c->clen;
      c->clen += l;
      body(c, s, l, now);
      return c->clen >= c->cl;
    }
    body(c, s, l, now);
    return 0;
  }
  while (l) {
    if (c->cst == 0) {
      if (*s == '\n') {
        c->csz[c->cszl] = 0;
        c->crem = strtoll(c->csz, 0, 16);
        c->cszl = 0;
        c->cst = c->crem ? 1 : 3;
      } else if (c->cszl < 30)
        c->csz[c->cszl++] = *s;
      s++;
      l--;
    } else if (c->cst == 1) {
      int k = l < c->crem ? l : c->crem;
      body(c, s, k, now);
      s += k;
      l -= k;
      c->crem -= k;
      if (!c->crem)
        c->cst = 2;
    } else if (c->cst == 2) {
      if (*s == '\n')
        c->cst = 0;
      s++;
      l--;
    } else {
      if (*s == '\n') {
        if (c->cszl == 0)
          return 1;
        c->cszl = 0;
      } else if (*s != '\r')
        c->cszl = 1;
      s++;
      l--;
    }
  }
  return 0;
}
static void onread(cn *c) {
  static char buf[262144];
  int k = recv(c->fd, buf, sizeof buf, 0);
  u64 now = now_ns();
  if (k < 0) {
    if (errno == EAGAIN || errno == EINTR)
      return;
  }
  if (k <= 0) {
    if (c->busy) {
      if (c->st == 4 && !c->chunked && c->cl < 0) {
        c->closeconn = 1;
        complete(c);
        return;
      }
      if (c->st == 2 || c->st == 3) { /* stale keep-alive: retry once on new conn */
        if (c->inl == 0 && !c->eof) {
          c->eof = 1;
          drop(c);
          c->oo = 0;
          dial(c);
          if (c->st == 2)
            sendreq(c);
          return;
        }
      }
      c->closeconn = 1;
      drop(c);
      finish(c, 0);
    } else
      drop(c);
    return;
  }
  char *s = buf;
  int l = k;
  if (c->st == 3 || c->st == 2) {
    if (c->inl + k + 1 > c->incap) {
      c->incap = (c->inl + k) * 2 + 4096;
      c->in = realloc(c->in, c->incap);
    }
    memcpy(c->in + c->inl, buf, k);
    c->inl += k;
    c->in[c->inl] = 0;
    char *h = memmem(c->in, c->inl, "\r\n\r\n", 4);
    if (!h)
      return;
    *h = 0;
    c->status = atoi(c->in + 9);
    char *p;
    if ((p = strcasestr(c->in, "\r\ncontent-length:")))
      c->cl = atoll(p + 17);
    if ((p = strcasestr(c->in, "\r\ntransfer-encoding:")) && strcasestr(p, "chunked"))
      c->chunked = 1;
    if (strcasestr(c->in, "\r\nconnection: close"))
      c->closeconn = 1;
    *h = '\r';
    int hl = h + 4 - c->in;
    s = c->in + hl;
    l = c->inl - hl;
    c->st = 4;
    if (l == 0 && !(c->cl == 0))
      return;
    static char tmp[262144];
    memcpy(tmp, s, l);
    s = tmp;
  }
  if (feed(c, s, l, now))
    complete(c);
}
int main(int ac, char **av) {
  signal(SIGPIPE, SIG_IGN);
  int o;
  while ((o = getopt(ac, av, "p:F:u:H:M:m:c:T:k:n:d:b:s:r:w:A:UK")) > 0)
    switch (o) {
    case 'p':
      port = atoi(optarg);
      break;
    case 'u':
      path = optarg;
      break;
    case 'H':
      strcat(hdrs, optarg);
      strcat(hdrs, "\r\n");
      break;
    case 'M':
      model = optarg;
      break;
    case 'm':
      stream = !strcmp(optarg, "st");
      break;
    case 'c':
      conc = atoi(optarg);
      break;
    case 'T':
      T = atof(optarg);
      break;
    case 'k':
      total = atol(optarg);
      break;
    case 'n':
      nch = atoi(optarg);
      break;
    case 'd':
      dus = atol(optarg);
      break;
    case 'b':
      bat = atoi(optarg);
      break;
    case 's':
      padn = atoi(optarg);
      break;
    case 'r':
      ramp = atoi(optarg);
      break;
    case 'w':
      warm = atof(optarg);
      break;
    case 'U':
      usage = 1;
      break;
    case 'F':
      endpoint = 0;
      for (int i = 0; i < 3; i++)
        if (!strcmp(optarg, endpoints[i].name))
          endpoint = &endpoints[i];
      if (!endpoint)
        return 2;
      break;
    case 'K':
      closeafter = 1;
      break;
    case 'A':
      auth = optarg;
      break;
    default:
      return 2;
    }
  mkreq();
  C = calloc(conc, sizeof(cn));
  ep = epoll_create1(0);
  tstart = now_ns();
  measuring = warm <= 0;
  tend = tstart + (u64)((T + warm) * 1e9);
  u64 twarm = tstart + (u64)(warm * 1e9);
  for (int i = 0; i < conc; i++) {
    C[i].fd = -1;
    C[i].startat = tstart + (u64)ramp * 1000000ull * i / conc;
  }
  int nextstart = 0;
  u64 tm0 = tstart;
  u64 hard = tstart + (u64)((T ? T + warm : 0) * 1e9) + 120ull * 1000000000ull;
  static struct epoll_event ev[1024];
  long ok0 = 0;
  u64 tok0 = 0;
  for (;;) {
    u64 t = now_ns();
    while (nextstart < conc && C[nextstart].startat <= t) {
      begin(&C[nextstart]);
      nextstart++;
    }
    if (!measuring && t >= twarm) {
      measuring = 1;
      tm0 = t;
      ok0 = okc;
      tok0 = tokcount;
      events = 0;
      bytes = 0;
    }
    if ((nextstart >= conc || stopped()) && inflight == 0)
      break;
    if (t > hard)
      break;
    int to = 1000;
    if (nextstart < conc) {
      i64 d = (i64)(C[nextstart].startat - t) / 1000000;
      if (d < to)
        to = d < 0 ? 0 : d;
    }
    int k = epoll_wait(ep, ev, 1024, to);
    for (int i = 0; i < k; i++) {
      cn *c = ev[i].data.ptr;
      if (c->fd < 0)
        continue;
      if (c->st == 1 && (ev[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        int er = 0;
        socklen_t sl = sizeof er;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &er, &sl);
        if (er) {
          drop(c);
          c->status = 0;
          static int fails;
          if (++fails > 2000) {
            fprintf(stderr, "connect failures\n");
            return 3;
          }
          finish(c, 0);
          continue;
        }
        c->st = 2;
        sendreq(c);
        continue;
      }
      if (ev[i].events & EPOLLOUT && c->st == 2 && c->busy)
        sendreq(c);
      if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        onread(c);
    }
  }
  u64 t1 = now_ns();
  double el = (t1 - tm0) / 1e9;
  struct rusage ru;
  getrusage(RUSAGE_SELF, &ru);
  double cpu = ru.ru_utime.tv_sec + ru.ru_stime.tv_sec + (ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
  long okm = okc - ok0;
  u64 tk = tokcount - tok0;
  printf("{\"ok_all\":%ld,\"chunks_all\":%llu,\"ok\":%ld,\"err\":%ld,\"incomplete\":%ld,\"non200\":%ld,\"neterr\":%ld,"
         "\"unfinished\":%d,\"elapsed\":%.4f,\"rps\":%.2f,\"chunks\":%llu,\"chunks_s\":%.1f,\"events\":%llu,\"bytes\":%llu,"
         "\"cpu\":%.3f",
         okc, tokcount, okm, errc, incompl, non200, neterr, inflight, el, okm / el, tk, tk / el, events, bytes, cpu);
  printf(",\"lat_mean\":%.1f,\"lat_p50\":%.1f,\"lat_p90\":%.1f,\"lat_p99\":%.1f,\"lat_max\":%.1f",
         Hlat.n ? Hlat.sum / Hlat.n / 1e3 : 0, hq(&Hlat, .5), hq(&Hlat, .9), hq(&Hlat, .99), Hlat.max / 1e3);
  printf(",\"ttfc_p50\":%.1f,\"ttfc_p99\":%.1f,\"ttfc_max\":%.1f,\"del_mean\":%.1f,\"del_p50\":%.1f,\"del_p99\":%.1f,\"del_max\":"
         "%.1f,\"gap_p50\":%.1f,\"gap_p99\":%.1f,\"gap_max\":%.1f",
         hq(&Httfc, .5), hq(&Httfc, .99), Httfc.max / 1e3, Hdel.n ? Hdel.sum / Hdel.n / 1e3 : 0, hq(&Hdel, .5), hq(&Hdel, .99),
         Hdel.max / 1e3, hq(&Hgap, .5), hq(&Hgap, .99), Hgap.max / 1e3);
  if (errsample[0]) {
    printf(",\"errsample\":\"");
    for (char *p = errsample; *p; p++) {
      if (*p == '"' || *p == '\\')
        putchar('\'');
      else if (*p < 32)
        putchar(' ');
      else
        putchar(*p);
    }
    printf("\"");
  }
  printf("}\n");
  return 0;
}
