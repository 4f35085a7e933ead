// An operation under way: followed by the stream and, in case that is silent, by polling.

import { read } from "./api.js";
import { stream } from "./stream.js";

const ASK_MS = 1000;

/** Why an operation did not succeed; empty where no reason is recorded. */
export const whyOf = (operation) => (typeof operation.error === "string" ? operation.error : operation.error?.detail) ?? "";

/** Call `onChange` whenever the operation changed, and return it when it is done. */
export function settled(operation, onChange = () => {}) {
  onChange(operation);
  if (operation.done) return Promise.resolve(operation);
  return new Promise((resolve, reject) => {
    const finish = (result) => {
      clearInterval(timer);
      stream.removeEventListener("operation", heard);
      resolve(result);
    };
    const take = (news) => {
      onChange(news);
      if (news.done) finish(news);
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
