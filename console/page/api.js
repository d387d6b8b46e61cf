// Questions to the node that served this page, and to nobody else.

const KEY = "caracal-token";

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export function keepToken(text) {
  sessionStorage.setItem(KEY, text.trim());
}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: headers(), cache: "no-store" });
  } catch {
    throw new Refused(0, "the node does not answer; it is tried again");
  }
  if (!answer.ok) {
    const value = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, value.error || `the node answered ${answer.status}`);
  }
  return answer;
}

/** The answer to a question: `get("routes", {prefix: "10.0.0.0/8"})`. */
export async function get(question, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value) query.set(name, value);
  }
  const text = query.toString();
  const answer = await ask(`/api/v1/${question}${text ? `?${text}` : ""}`);
  return answer.json();
}

/** Reads events until the connection ends. */
async function read(tell) {
  const answer = await ask("/api/v1/events");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = {};
      for (const line of part.split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
      }
      if (fields.event) tell(fields.event, JSON.parse(fields.data));
    }
  }
}

/** Follows events for ever; `lost` is told of each end of the connection. */
export async function follow(tell, lost) {
  for (;;) {
    let reason = "the connection ended";
    try {
      await read(tell);
    } catch (error) {
      reason = error;
    }
    lost(reason);
    await new Promise((done) => setTimeout(done, 2000));
  }
}
