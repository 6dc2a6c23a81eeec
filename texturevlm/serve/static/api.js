// Calls to the server. The token comes with the address (#token=…) and is kept for this tab alone: no cookies.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) sessionStorage.setItem("token", given);

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", 0);
  }
  if (answer.ok) return answer;
  if (answer.status === 401) throw new ApiError("This server needs its token: open the address that it printed when it started.", 401);
  const said = await answer.json().catch(() => null);
  throw new ApiError(said?.error?.message ?? `The server answered ${answer.status}.`, answer.status);
}

export const getJson = async (path, signal) => (await call(path, { signal })).json();

const posting = (body, signal) => ({
  method: "POST", body: JSON.stringify(body), signal, headers: { "content-type": "application/json" },
});

export const postJson = async (path, body, signal) => (await call(path, posting(body, signal))).json();

export async function upload(file, signal) {
  const form = new FormData();
  form.append("file", file, file.name);
  return (await call("/api/images", { method: "POST", body: form, signal })).json();
}

const blob = async (path, signal, body) => (await call(path, body ? posting(body, signal) : { signal })).blob();

// A picture as an ImageBitmap: an <img> could not bring the token. body: of a POST
export const bitmap = async (path, signal, body) => createImageBitmap(await blob(path, signal, body));

export const objectUrl = async (path, signal, body) => URL.createObjectURL(await blob(path, signal, body));

// Server-sent events of a POST: tell(kind, value) for each.
export async function events(path, body, signal, tell) {
  const answer = await call(path, posting(body, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const one of whole) {
      const [, kind, data] = one.match(/^event: (.*)\ndata: (.*)$/s) ?? [];
      if (kind) tell(kind, JSON.parse(data));
    }
  }
}

// Only the newest of the requests of one kind counts: the one before is aborted.
export function newest() {
  let last = null;
  return async (work) => {
    last?.abort();
    const own = (last = new AbortController());
    try {
      return await work(own.signal);
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      throw error;
    } finally {
      if (last === own) last = null;
    }
  };
}
