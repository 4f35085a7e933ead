// An operation on its way: told by the stream and, should that be silent, by asking.

import { read } from "./api.js";
import { stream } from "./stream.js";

const ASK_MS = 1000;
const DONE = new Set(["succeeded", "failed", "cancelled", "expired"]);

export const isDone = (operation) => operation.done === true || DONE.has(operation.state);

/** Why an operation did not succeed, in words; empty when it says nothing. */
export const whyOf = (operation) => (typeof operation.error === "string" ? operation.error : operation.error?.detail) ?? "";

/** Call `onChange` whenever the operation moved on, and return it when it is over. */
export function settled(operation, onChange = () => {}) {
  onChange(operation);
  if (isDone(operation)) return Promise.resolve(operation);
  return new Promise((resolve, reject) => {
    const finish = (result) => {
      clearInterval(timer);
      stream.removeEventListener("operation", heard);
      resolve(result);
    };
    const take = (news) => {
      onChange(news);
      if (isDone(news)) finish(news);
    };
    const heard = ({ detail }) => detail.id === operation.id && take(detail);
    const timer = setInterval(() => {
      read(`/operations/${encodeURIComponent(operation.id)}`).then(take, (error) => {
        if (error.status !== 404) return;
        clearInterval(timer);
        stream.removeEventListener("operation", heard);
        reject(error);
      });
    }, ASK_MS);
    stream.addEventListener("operation", heard);
  });
}
